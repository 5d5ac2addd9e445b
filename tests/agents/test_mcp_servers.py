"""Clients of MCP servers, without a service: lists, results, and servers that die, freeze, change or lie."""

import gzip
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from smolsessions.agents.config.schema import McpTable
from smolsessions.agents.tools import mcp
from smolsessions.agents.tools.mcp_results import MAX_ERROR_CHARS, ToolServerError
from smolsessions.agents.tools.mcp_secrets import secrets_of
from smolsessions.core.errors import AgentUnavailableError, StartError
from tests.support.data import table
from tests.support.http_server import Handler, Server
from tests.support.tool_servers import HOSTILE, HttpServer, Tools, programs_of, stdio
from tests.support.waiting import PATIENCE_S, wait_until

CHUNK = b"0" * 65536
HEADERS: dict[str, dict[str, str]] = {
    "redirected": {"Location": "http://localhost:{port}/elsewhere"},  # another origin that is the same server
    "compressed": {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    "endless": {"Content-Type": "application/json"},
    "endless event": {"Content-Type": "text/event-stream"},
    "a page": {"Content-Type": "text/html"},
}


@contextmanager
def hostile_http(kind: str, paths: list[str]) -> Iterator[str]:
    """Serve answers of one kind, and note the paths that are asked for. Yields the address."""

    class Bad(Handler):
        protocol_version = "HTTP/1.0"

        def do_POST(self) -> None:
            paths.append(self.path)
            self.send_response(307 if kind == "redirected" else 200)
            for name, value in HEADERS[kind].items():
                self.send_header(name, value.format(port=server.server_port))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(gzip.compress(CHUNK) if kind == "compressed" else b"data: <html>")
                while kind.startswith("endless"):
                    self.wfile.write(CHUNK)

    with Server(Bad) as server:
        yield f"{server.url}/mcp"


KEY = "sk-two-77aa01c2"
LISTS = dict.fromkeys(("endless", "many", "fat"), "more than 500 tools, 100 pages or 16 MiB") | {
    "huge": "more than 16 MiB at once",
    "odd": "",
}
RESULTS: dict[str, tuple[str, dict[str, Any], Any]] = table("mcp servers results")


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Let servers start as slowly as on a loaded machine, except where a test awaits the end of that time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mcp, "START_S", PATIENCE_S)
        yield


@pytest.fixture(scope="module")
def tools() -> Iterator[dict[str, Any]]:
    with Tools(one=stdio()) as opened:
        yield opened.all()


@pytest.mark.parametrize("case", RESULTS)
def test_a_result_is_a_plain_value(tools: dict[str, Any], case: str) -> None:
    name, arguments, result = RESULTS[case]
    assert tools[name](**arguments) == result


def test_schemas_have_no_references_and_say_what_is_optional(tools: dict[str, Any]) -> None:
    order = tools["order"].inputs["order"]
    assert order["type"] == "object"
    assert order["properties"]["address"]["properties"]["street"]["type"] == "string"
    assert order["properties"]["parts"]["items"] == {"type": "object"}, "it refers to itself"
    assert "$" not in str(tools["order"].inputs)
    style = tools["greet"].inputs["style"]
    assert (style["type"], style["nullable"], style["enum"]) == ("string", True, ["plain", "warm"])
    assert "nullable" not in tools["greet"].inputs["name"]


def test_a_name_that_is_taken_or_that_two_servers_use_is_prefixed() -> None:
    with Tools(("fail",), one=stdio("verbose", program=HOSTILE)) as opened:
        assert opened.all().keys() == {"one_fail"}
    with Tools(one=stdio("verbose", program=HOSTILE), two=stdio("verbose", program=HOSTILE)) as opened:
        assert opened.all().keys() == {"one_fail", "two_fail"}


def test_names_of_a_hostile_list_are_python_names_and_hide_no_function_of_python() -> None:
    with Tools(("final_answer",), one=stdio("names", program=HOSTILE)) as opened:
        found = opened.all()
        assert found["one_final_answer"]() == "called {}"
    assert len(found) == 13
    assert all(name.isidentifier() and len(name) <= 64 and not name.startswith("__") for name in found)
    assert not {"print", "class", "final_answer", "__import__"} & found.keys()
    assert all(tool.description.isprintable() for tool in found.values())


def test_hostile_schemas_are_bounded_and_fetch_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with Tools(one=stdio("schemas", program=HOSTILE)) as opened:
        found = opened.all()
        assert found["odd"](self_=1, class_=None, a_b=1) == 'called {"self": 1, "a b": 1}'
    assert found.keys() == {"good", "loop", "net", "file", "odd", "required"}
    for name in ("deep", "wide", "long"):
        assert f"the tool '{name}' of the MCP server one has too large a schema" in caplog.text


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_without_end_or_sense_is_none(kind: str) -> None:
    with Tools(one=stdio(kind, program=HOSTILE)) as opened:
        opened.servers.tries_once = True
        with pytest.raises(StartError, match=rf"\[mcp.one\] gives no list of tools .*{LISTS[kind]}"):
            opened.all()
    wait_until(lambda: not programs_of(os.getpid(), f"{HOSTILE} {kind}"))


def test_a_long_error_is_cut_and_shows_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE_KEY", KEY)
    table = stdio("verbose", program=HOSTILE, env={"API_KEY": "ONE_KEY"})
    with Tools(one=table) as opened, pytest.raises(ToolServerError) as caught:
        opened.all()["fail"]()
    assert len(str(caught.value)) == MAX_ERROR_CHARS
    assert str(caught.value).startswith("***: no no")


def test_a_result_of_many_parts_or_pixels_is_bounded() -> None:
    with Tools(one=stdio("parts", program=HOSTILE)) as opened:
        found = opened.all()
        with pytest.raises(ToolServerError, match="more than 1000 parts"):
            found["parts"]()
        images = found["bombs"]()
    assert [type(each) is str for each in images] == [False] * 2 + [True] * 38
    assert images[2] == "[an image of image/png that cannot be read, or is beyond 50000000 pixels of a result]"


@pytest.mark.parametrize("kind", HEADERS)
def test_a_bad_answer_over_http_is_neither_followed_nor_read_to_its_end(kind: str) -> None:
    paths: list[str] = []
    with hostile_http(kind, paths) as url, Tools(one=McpTable(url=url)) as opened:
        opened.servers.tries_once = True
        with pytest.raises(StartError, match="gives no list of tools"):
            opened.all()
    assert set(paths) == {"/mcp"}


def test_a_missing_program_or_variable_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAD_HEADER", "a\nb: c")
    tables = {
        "there is no such program": stdio().model_copy(update={"command": "no-such-program"}),
        "env.TOKEN: names a variable that is not set": stdio(env={"TOKEN": "UNSET_HERE"}),
        "letters beyond ASCII": McpTable(url="http://127.0.0.1:9", headers={"X-Key": "BAD_HEADER"}),
    }
    for sentence, wrong in tables.items():
        with pytest.raises(StartError, match=sentence) as caught:
            Tools(one=wrong)
        assert "b: c" not in caught.value.message


PROGRAM_THAT_FAILS = 'import os, sys; print("PAT", os.environ["GITHUB_PAT"], file=sys.stderr); import not_there'
VARIABLES: Any = table("mcp servers variables")


def test_a_programs_last_line_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PAT_HERE", KEY)
    table = McpTable(command=sys.executable, args=("-c", PROGRAM_THAT_FAILS), env={"GITHUB_PAT": "PAT_HERE"})
    with Tools(one=table) as opened:
        opened.servers.tries_once = True
        with pytest.raises(StartError, match=r"\[mcp.one\] gives no list .*ModuleNotFoundError: .*not_there"):
            opened.all()
        time.sleep(0.5)
        assert opened.servers.health()[0].restarts == 0
    assert "is down" not in caplog.text
    for start_s in (1.5, 6, 24):  # longer if a loaded machine did not start it twice
        caplog.clear()
        monkeypatch.setattr(mcp, "START_S", start_s)
        with Tools(one=table) as opened:
            with pytest.raises(AgentUnavailableError) as caught:
                opened.all()
            if (restarts := opened.servers.health()[0].restarts) > 1:
                break
    assert restarts > 1
    assert "not_there" not in caught.value.message, "callers read it"
    assert caplog.text.count("the MCP server one is down: MCPError") == 1
    assert "ModuleNotFoundError" in caplog.text
    assert KEY not in caplog.text


def test_secrets_of_a_program_are_told_from_plain_values_by_name_and_form() -> None:
    hidden = {name for name, value in VARIABLES.items() if secrets_of({name: value}, None)}
    assert hidden == {"GITHUB_PAT", "DB_PWD", "LICENSE", "OTHER"}
    assert secrets_of({"Level": "verbosely"}, "http://tools.example") == {"verbosely"}, "any header is a secret"


def test_a_late_server_is_logged_with_the_restart_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mcp, "START_S", 1.0)
    server = HttpServer(tmp_path)
    with Tools(two=McpTable(url=server.url)) as opened:
        with pytest.raises(AgentUnavailableError):
            opened.all()
        with server:
            wait_until(opened.is_up)
            wait_until(lambda: "restart the service to serve the agents that use it" in caplog.text)
    assert caplog.text.count("the MCP server two is down: ConnectError") == 1


def test_a_frozen_program_is_an_error_in_time_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    others = programs_of(os.getpid())
    with Tools(one=stdio(timeout_s=3)) as opened:
        found = opened.all()
        (program,) = set(programs_of(os.getpid())) - {*others}
        monkeypatch.setattr(mcp, "ALIVE_S", 1.0)
        program.send_signal(signal.SIGSTOP)
        with pytest.raises(ToolServerError, match="did not answer within 3 s; it is not known"):
            found["add"](a=1)
        wait_until(lambda: opened.servers.health()[0].restarts == 1 and opened.is_up())
        assert found["add"](a=1) == {"result": 2}
        assert not program.is_running()


def test_an_end_leaves_no_program_behind_not_even_a_frozen_one() -> None:
    others = programs_of(os.getpid())
    with Tools(one=stdio()) as opened:
        opened.all()
        (program,) = set(programs_of(os.getpid())) - {*others}
        program.send_signal(signal.SIGSTOP)
    assert not program.is_running()


def test_programs_that_a_server_has_started_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f'sleep 600 >/dev/null & echo $! >> "$STARTED"; exec {sys.executable} -m {HOSTILE} names'
    monkeypatch.setenv("STARTED_FILE", str(tmp_path / "started"))
    table = McpTable(command="sh", args=("-c", script), env={"STARTED": "STARTED_FILE"})
    with Tools(one=table) as opened:
        opened.all()
        (program,) = programs_of(os.getpid(), f"{HOSTILE} names")
        program.kill()
        wait_until(lambda: opened.servers.health()[0].restarts == 1 and opened.is_up())
    first, second = map(int, (tmp_path / "started").read_text().split())
    wait_until(lambda: not psutil.pid_exists(first) and not psutil.pid_exists(second))


def test_a_key_at_the_end_of_a_line_is_masked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("ONE_KEY", KEY)
    script = f"printf '%490s %s\\nend' x $API_KEY >&2; exec {sys.executable} -m {HOSTILE} names"
    with Tools(one=McpTable(command="sh", args=("-c", script), env={"API_KEY": "ONE_KEY"})) as opened:
        opened.all()
        wait_until(lambda: "***" in caplog.text)
    assert "the MCP server one: end" in caplog.text, "a last line without an end is logged, too"
    assert KEY[:6] not in caplog.text


def test_a_server_over_http_may_die_and_freeze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TWO_KEY", KEY)
    with HttpServer(tmp_path) as server:
        table = McpTable(url=server.url, headers={"X-Key": "TWO_KEY"}, timeout_s=4.0)
        with Tools(two=table) as opened:
            found = opened.all()
            assert found["show_secret"](name="X-Key") == "it is ***", "it was sent, and is not repeated"
            server.kill()
            for _ in range(2):
                with pytest.raises(ToolServerError, match="the MCP server two"):
                    found["add"](a=1)
            server.environment["EXTRA"] = "1"
            server.start()
            wait_until(lambda: opened.is_up() and opened.servers.health()[0].list_changes == 1)
            assert found["add"](a=1) == {"result": 2}
            assert "extra" not in opened.all(), "the first list is pinned"
            assert caplog.text.count("the MCP server two lists other tools now; restart the service") == 1
            with Tools(two=table) as again:
                assert again.all()["extra"]() == {"result": "more"}
            server.freeze()
            with pytest.raises(ToolServerError, match="did not answer within 4 s"):
                found["add"](a=1)


def test_an_answer_that_is_too_large_is_an_error_and_others_go_on(tools: dict[str, Any]) -> None:
    assert len(tools["huge"](mebibytes=8)) == 8 * 1024 * 1024
    with pytest.raises(ToolServerError, match="more than 16 MiB"):
        tools["huge"](mebibytes=20)
    assert tools["add"](a=1) == {"result": 2}
