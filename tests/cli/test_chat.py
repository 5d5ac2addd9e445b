"""`chat`: interrupts, restarts, pipes, and turns that wait for a person."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from smolsessions.store.embedded.data_folder import address_in, locked, record_address
from tests.support import approvals
from tests.support.preloaded import PYTHONPATH
from tests.support.refusals import sentence_of
from tests.support.service import PATIENCE_S, Gate, Service, run, run_program, shared_service
from tests.support.terminal import CTRL_C, CTRL_D, Terminal, command, terminal_of
from tests.support.tiers import deep
from tests.support.turns import DONE, ECHO, ENDLESS


@contextmanager
def chatting(folder: Path, *arguments: str) -> Iterator[Terminal]:
    with terminal_of(folder, *command("chat", *arguments)) as terminal:
        yield terminal


def type_endless(terminal: Terminal) -> None:
    """Send a message whose answer does not end, and wait until it shows."""
    terminal.type(json.dumps([ENDLESS]).encode() + b"\n")
    terminal.wait_for("on and on on and on")


def test_ctrl_c_stops_the_turn_and_the_chat_goes_on_and_is_resumed(service: Service, tmp_path: Path) -> None:
    url = service.url
    with chatting(tmp_path, "streamed", "--url", url) as terminal:
        terminal.wait_for("agents: .*streamed")
        terminal.wait_for("\n> ")
        type_endless(terminal)
        terminal.type(CTRL_C)
        terminal.wait_for("stopped; its finished steps are kept")
        terminal.reply("> ", json.dumps([ECHO, {"say": "still here"}]))
        terminal.wait_for("→ streamed: echo")
        terminal.wait_for("✓ ")
        terminal.wait_for("still here")
        terminal.reply("> ", CTRL_D)
        conversation = terminal.wait_for(r"--conversation (\w+)")
        assert terminal.process.wait(PATIENCE_S) == 0
    statuses = [turn["status"] for turn in service.get(f"/conversations/{conversation}/turns")["items"]]
    assert statuses == ["cancelled", "finished"]
    with chatting(tmp_path, "--conversation", conversation, "--url", url) as terminal:
        terminal.wait_for("stopped; its finished steps are kept")
        terminal.wait_for("still here")


def test_a_line_that_is_typed_while_a_turn_runs_joins_it_or_follows_it(
    service: Service, gate: Gate, tmp_path: Path
) -> None:
    held, last = Gate(tmp_path / "held"), Gate(tmp_path / "last")
    with chatting(tmp_path, "streamed", "--url", service.url) as terminal:
        terminal.reply("\n> ", json.dumps([gate.script, DONE]))
        gate.reached()
        terminal.type(b"/code\n")
        terminal.wait_for("commands work once the turn is over")
        pieces = [[0, '{"answer": "the ', "final_answer"], {"gate": str(last.path)}, [0, 'answer"}']]
        joins = json.dumps([held.script, {"stream": pieces}])
        terminal.type(joins.encode() + b"\n")
        terminal.wait_for("sent; the agent reads it before its next model call")
        gate.open()
        terminal.wait_for(re.escape(f"the agent reads: {joins}"))
        held.reached()
        held.open()
        last.reached()  # in the last model call of the turn
        terminal.reply("", json.dumps([{"say": "afterwards"}]))
        terminal.wait_for("sent; ")
        last.open()
        terminal.wait_for("answer")
        terminal.wait_for("afterwards(.|\n)*\n> ")
        terminal.type(CTRL_D)
        conversation = terminal.wait_for(r"--conversation (\w+)")
    turns = service.get(f"/conversations/{conversation}/turns")["items"]
    assert [(turn["reply"], turn["error"] and turn["error"]["code"]) for turn in turns] == [
        ("the answer", None),
        (None, "steered"),
        ("afterwards", None),
    ]
    with chatting(tmp_path, "--conversation", conversation, "--url", service.url) as terminal:
        terminal.wait_for("Turn 1 took this message while it ran.")


def test_a_chat_starts_a_service_which_survives_ctrl_c_and_ends_with_it(tmp_path: Path) -> None:
    with chatting(tmp_path, "tests.support.streaming:make_streamed", "--no-demo-agents") as terminal:
        terminal.wait_for(r"agents: streamed \(default\)")
        type_endless(terminal)
        terminal.type(CTRL_C)
        terminal.wait_for("stopped; its finished steps are kept")
        terminal.reply("> ", json.dumps([{"say": "after it"}]))
        terminal.wait_for("after it")
        terminal.process.terminate()
        assert terminal.process.wait(PATIENCE_S) == 128 + 15
    with Service(tmp_path, {"DATA_DIR": str(tmp_path / "smolsessions-data")}) as later:
        assert later.get("/conversations")["items"], "nothing holds the data folder any more"


def test_a_chat_folds_code_says_the_answer_once_forks_and_rolls_back(service: Service, tmp_path: Path) -> None:
    with chatting(tmp_path, "demo-code", "--url", service.url) as terminal:
        terminal.reply("\n> ", "/fork")
        terminal.wait_for("/fork needs a conversation; send a message first")
        terminal.reply("\n> ", "What is 12 * 7?")
        shown = terminal.wait_for("writing code(?:.|\n)*\n> ")
        assert (shown.count("= 84"), shown.count("final_answer"), shown.count("▸ result_1 = ")) == (1, 0, 1), shown
        terminal.type(b"/code\n")
        terminal.wait_for("print.result_1.(.|\n)*final_answer")
        terminal.reply("\n> ", "/fork 1")
        fork = terminal.wait_for(r"goes on in (\w+), a copy up to turn 1")
        terminal.reply("\n> ", "Count to 3.")
        assert "final_answer" not in terminal.wait_for("(?:.|\n)*1 2 3")
        for ends in (1, 0):
            terminal.reply("\n> ", "/rollback")
            terminal.wait_for(f"the memory ends with turn {ends}; ")
        terminal.reply("\n> ", "/turns")
        terminal.wait_for(r"/turns is no command(.|\n)*/rollback \[TURN\]")
    found = service.get(f"/conversations/{fork}")
    assert (found["turn_count"], found["step_counts"]["task"]) == (2, 0), found
    assert found["forked_from"]["turn"] == 1


def piped(folder: Path, messages: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    ended = run_program(
        [*command("chat", *arguments)], input=messages, cwd=folder, env=os.environ | {"PYTHONPATH": PYTHONPATH}
    )
    assert ended.returncode == 0, ended.stderr
    return ended


def test_a_pipe_gets_the_answers_without_colour(service: Service, tmp_path: Path) -> None:
    ended = piped(tmp_path, '[{"say": "one"}]\n[{"say": "two"}]\n', "scripted", "--url", service.url)
    assert re.search("\none\n(.*\n)*two\n", ended.stdout), ended.stdout
    assert "\x1b" not in ended.stdout + ended.stderr


def test_a_chat_joins_the_service_of_its_folders_data(service: Service, tmp_path: Path) -> None:
    (tmp_path / "smolsessions.toml").write_text(f'data_dir = "{service.folder / "data"}"\n')
    ended = piped(tmp_path, '[{"say": "joined"}]\n', "streamed")
    assert f"joins the service on {service.client.base_url.netloc.decode()}" in ended.stdout
    name = re.search(r"--conversation (\w+)", ended.stdout)
    assert name
    assert service.get(f"/conversations/{name[1]}")["turn_count"] == 1


def test_a_file_that_holds_no_address_names_no_service(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with locked(folder, grace_s=1):
        assert address_in(folder) is None
        for content in (b"", b"127.0.0.1", b"\xff:80", b"a host:80"):
            (folder / "address").write_bytes(content)
            assert address_in(folder) is None
        record_address(folder, "[::1]:8000")
        assert address_in(folder) == "[::1]:8000"


@deep
def test_the_last_line_of_a_chat_names_what_to_add_to_its_command(tmp_path: Path) -> None:
    begun = ("tests.support.streaming:make_streamed", "--no-demo-agents", "--data-dir", "elsewhere")
    last = piped(tmp_path, '[{"say": "one"}]\n', *begun).stdout.splitlines()[-1]
    added = re.fullmatch(r"Add (--conversation \w+) to the command to go on with this conversation\.", last)
    assert added, last
    later = piped(tmp_path, '[{"say": "two"}]\n', *begun, *added[1].split()).stdout
    assert re.search("\none\n(.*\n)*two\n", later), later


def test_an_agent_of_this_machine_is_refused_for_another_service(tmp_path: Path) -> None:
    for words in (["mine:make_shop"], ["--agent", "shop=mine:make_shop"]):
        sentence = sentence_of(run(tmp_path, {}, "chat", *words, "--url", "http://127.0.0.1:9"))
        assert "mine:make_shop would be served here, and --url names another service" in sentence
        (tmp_path / "service.log").unlink()
    chosen = run(tmp_path, {}, "chat", "--agent", "shop", "--url", "http://127.0.0.1:9")
    assert "to choose an agent, write `chat shop`" in sentence_of(chosen)


QUESTION = {"call": [["ask_user", {"question": "Which \x1b[31mtea?", "choices": ["green", "black"]}]]}


MAILER = {"AGENTS": "mailer=tests.support.approvals:make_mailer", "DEMO_AGENTS": "0"}
asking = shared_service(lambda folder: Service(folder, MAILER, {approvals.OUTBOX: str(folder / "sent")}))


@pytest.fixture
def outbox(asking: Service) -> Path:
    return asking.folder / "sent"


def emails(*receivers: str) -> dict[str, Any]:
    return {"call": [["send_email", {"to": to, "text": "hello"}] for to in receivers]}


def test_a_chat_asks_for_approvals_and_answers(asking: Service, outbox: Path, tmp_path: Path) -> None:
    url, script = asking.url, [emails("ada\u202e\x9b", "bob\u061c\U000e0041", "cy"), DONE]
    with terminal_of(tmp_path, *command("chat", "mailer", "--url", url), EDITOR="", VISUAL="") as terminal:
        terminal.reply("\n> ", json.dumps(script))
        shown = terminal.wait_for(r"mailer asks to call send_email:((.|\n)*)\[e\]dit\? ")
        assert r"ada\u202e" in terminal.wait_for("^") + shown
        terminal.type(b"e\n")
        terminal.reply(r'all arguments as JSON: {"to": "ada\\u202e', '\x15{"to": "eve"}')
        terminal.wait_for("422 invalid_request: .*text")
        terminal.reply(r"\[e\]dit\? ", "e")
        terminal.reply("all arguments as JSON: ", '\x15{"to": "eve", "text": "hi"}')
        terminal.reply(r'"bob\\u061c\\udb40\\udc41"(.|\n)*\[e\]dit\? ', "r")
        terminal.reply("reason", "Bob is away")
        terminal.reply(r'"cy"(.|\n)*\[e\]dit\? ', CTRL_C)
        conversation = terminal.wait_for(
            rf"the turn waits for your answer(?:.|\n)*turns answer (\w+) 1 .* --approve --url {url}", again=CTRL_C
        )
        terminal.reply("\n> ", CTRL_D)
        assert terminal.process.wait(PATIENCE_S) == 0
    assert not outbox.exists()
    with terminal_of(tmp_path, *command("chat", "--conversation", conversation, "--url", url)) as terminal:
        terminal.reply(r'"cy"(.|\n)*\[e\]dit\? ', CTRL_C)
        terminal.wait_for("the turn waits for your answer", again=CTRL_C)
        terminal.reply("\n> ", json.dumps([QUESTION, DONE]))
        terminal.wait_for("sent; ")
        terminal.reply(r'"cy"(.|\n)*\[e\]dit\? ', "y")
        terminal.reply(r"write a, r or e(.|\n)*\[e\]dit\? ", "a")
        terminal.wait_for("the agent reads: .*ask_user")
        assert "\x1b[31m" not in terminal.wait_for(r"Which .*tea(.|\n)*number, or nothing to decline: ")
        terminal.type(b"3\n")
        terminal.reply("3 is none of the choices", "2")
        terminal.wait_for("done")
        terminal.wait_for("\n> ")
    assert sorted(outbox.read_text().splitlines()) == ["cy: hello", "eve: hi"]
    turn = asking.get(f"/conversations/{conversation}/turns/1")
    assert [call["approval"]["decision"] for call in turn["tool_calls"][:3]] == ["edited", "rejected", "approved"]
    assert turn["tool_calls"][1]["approval"]["reason"] == "Bob is away"


def test_a_script_lists_waiting_conversations_and_answers(asking: Service, outbox: Path, tmp_path: Path) -> None:
    turn = asking.post("/turn", message=json.dumps([emails("dan", "fay"), QUESTION, DONE]), agent="mailer").json()
    name, (first, second) = turn["conversation_id"], [each["request_id"] for each in turn["requests"]]

    def ask(*arguments: str) -> tuple[int, str, str]:
        status, output, errors = run(tmp_path, {"URL": asking.url}, *arguments)
        (tmp_path / "service.log").unlink()
        return status, output, errors

    assert name in ask("conversations", "list", "--status", "waiting")[1]
    assert ask("turns", "answer", name, "1", first)[0] == 2
    assert ask("turns", "answer", name, "1", "--approve") == (
        1,
        "",
        f"smolsessions: name one of the open requests: {first}, {second}\n",
    )
    _, shown, _ = ask("turns", "answer", name, "1", first, "--approve", "--arguments", '{"to": "gil", "text": "hi"}')
    assert [each["request_id"] for each in json.loads(shown)["requests"]] == [second]
    _, shown, _ = ask("turns", "answer", name, "1", second, "--reject", "--reason", "no")
    assert json.loads(shown)["requests"][0]["kind"] == "question"
    status, shown, errors = ask("turns", "answer", name, "1", "--text", "green")
    assert (status, errors, json.loads(shown)["reply"]) == (0, "", "done")
    assert "gil: hi" in outbox.read_text()
    assert "fay" not in outbox.read_text()
