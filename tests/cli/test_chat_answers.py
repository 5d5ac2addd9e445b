"""Turns that wait for a person, in `chat` and by `turns answer`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import approvals
from tests.support.service import Service, run
from tests.support.terminal import CTRL_C, CTRL_D, command, terminal_of
from tests.support.turns import DONE
from tests.support.waiting import PATIENCE_S

QUESTION = {"call": [["ask_user", {"question": "Which \x1b[31mtea?", "choices": ["green", "black"]}]]}


@pytest.fixture(scope="module")
def outbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outbox") / "sent"


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory, outbox: Path) -> Iterator[Service]:
    settings = {"AGENTS": "mailer=tests.support.approvals:make_mailer", "DEMO_AGENTS": "0"}
    with Service(tmp_path_factory.mktemp("asking"), settings, {approvals.OUTBOX: str(outbox)}) as running:
        yield running


def emails(*receivers: str) -> dict[str, Any]:
    return {"call": [["send_email", {"to": to, "text": "hello"}] for to in receivers]}


def test_a_chat_asks_for_approvals_and_answers(asking: Service, outbox: Path, tmp_path: Path) -> None:
    url, script = str(asking.client.base_url), [emails("ada\u202e\x9b", "bob\u061c\U000e0041", "cy"), QUESTION, DONE]
    with terminal_of(tmp_path, *command("chat", "mailer", "--url", url), EDITOR="", VISUAL="") as terminal:
        terminal.wait_for("\n> ")
        terminal.type(json.dumps(script).encode() + b"\n")
        shown = terminal.wait_for(r"mailer asks to call send_email:((.|\n)*)\[e\]dit\? ")
        assert r"ada\u202e" in terminal.wait_for("^") + shown
        terminal.type(b"e\n")
        terminal.wait_for(r'all arguments as JSON: {"to": "ada\\u202e')
        terminal.type(b'\x15{"to": "eve"}\n')
        terminal.wait_for("422 invalid_request: .*text")
        terminal.wait_for(r"\[e\]dit\? ")
        terminal.type(b"e\n")
        terminal.wait_for("all arguments as JSON: ")
        terminal.type(b'\x15{"to": "eve", "text": "hi"}\n')
        terminal.wait_for(r'"bob\\u061c\\udb40\\udc41"(.|\n)*\[e\]dit\? ')
        terminal.type(b"r\n")
        terminal.wait_for("reason")
        terminal.type(b"Bob is away\n")
        terminal.wait_for(r'"cy"(.|\n)*\[e\]dit\? ')
        terminal.type(CTRL_C)
        conversation = terminal.wait_for(
            rf"the turn waits for your answer(?:.|\n)*turns answer (\w+) 1 .* --approve --url {url}", again=CTRL_C
        )
        terminal.wait_for("\n> ")
        terminal.type(CTRL_D)
        assert terminal.process.wait(PATIENCE_S) == 0
    assert not outbox.exists()
    with terminal_of(tmp_path, *command("chat", "--conversation", conversation, "--url", url)) as terminal:
        terminal.wait_for(r'"cy"(.|\n)*\[e\]dit\? ')
        terminal.type(b"a\n")
        question = terminal.wait_for(r"Which .*tea(.|\n)*number, or nothing to decline: ")
        assert "\x1b[31m" not in question
        terminal.type(b"3\n")
        terminal.wait_for("3 is none of the choices")
        terminal.type(b"2\n")
        terminal.wait_for("done")
        terminal.wait_for("\n> ")
    assert sorted(outbox.read_text().splitlines()) == ["cy: hello", "eve: hi"]
    turn = asking.get(f"/conversations/{conversation}/turns/1")
    assert [call["approval"]["decision"] for call in turn["tool_calls"][:3]] == ["edited", "rejected", "approved"]
    assert turn["tool_calls"][1]["approval"]["reason"] == "Bob is away"


def test_an_editor_changes_the_arguments(asking: Service, outbox: Path, tmp_path: Path) -> None:
    url = str(asking.client.base_url)
    with terminal_of(
        tmp_path, *command("chat", "mailer", "--url", url), EDITOR="sed -i s/ada/edited/", VISUAL=""
    ) as terminal:
        terminal.wait_for("\n> ")
        terminal.type(json.dumps([emails("ada"), DONE]).encode() + b"\n")
        terminal.wait_for(r"\[e\]dit\? ")
        terminal.type(b"e\n")
        terminal.wait_for("done")
    assert "edited: hello" in outbox.read_text()


def test_a_script_lists_waiting_conversations_and_answers(asking: Service, outbox: Path, tmp_path: Path) -> None:
    turn = asking.post("/turn", message=json.dumps([emails("dan", "fay"), QUESTION, DONE]), agent="mailer").json()
    name, (first, second) = turn["conversation_id"], [each["request_id"] for each in turn["requests"]]

    def ask(*arguments: str) -> tuple[int, str, str]:
        status, output, errors = run(tmp_path, {"URL": str(asking.client.base_url)}, *arguments)
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
