"""Commands `conversations`, `turns` and `keys`, as processes against a running service."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import PATIENCE_S, ROOT, Service, run, run_program
from tests.support.terminal import command, terminal_of
from tests.support.turns import DONE, ECHO

Ending = tuple[int, str, str]


@pytest.fixture
def ask(service: Service, tmp_path: Path) -> Callable[..., Ending]:
    """Return a function that runs a command against the service."""

    def ask(*arguments: str) -> Ending:
        status, output, errors = run(tmp_path, {"URL": service.url}, *arguments)
        (tmp_path / "service.log").unlink()
        return status, output, errors

    return ask


def played(service: Service, *script: dict[str, Any]) -> str:
    return str(service.play(*script)["conversation_id"])


def test_conversations_are_listed_as_a_table_and_as_json(service: Service, ask: Callable[..., Ending]) -> None:
    played(service, DONE)
    name = played(service, ECHO, DONE)
    status, table, errors = ask("conversations", "list", "--limit", "1")
    assert (status, errors) == (0, "more exist than --limit 1 shows\n")
    head, row = table.splitlines()
    assert head.split() == ["id", "agent", "status", "turns", "updated", "title"]
    assert row.split()[:4] == [name, "scripted", "idle", "1"]
    service.client.patch(
        f"/conversations/{name}",
        json={"title": "[/red] is no markup"},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert "[/red] is no markup" in ask("conversations", "list", "--limit", "1")[1]
    _, lines, _ = ask("conversations", "list", "--limit", "1", "--json")
    assert json.loads(lines)["id"] == name
    _, nothing, said = ask("conversations", "list", "--search", "no such title")
    assert (nothing, said.startswith("no conversation; ")) == ("", True)


def test_texts_of_others_do_not_control_the_terminal(service: Service, ask: Callable[..., Ending]) -> None:
    evil = "\x1b]0;title\x07 \x1b[2J \x9b31m\x7f end"
    name = played(service, {"say": evil})
    service.client.patch(f"/conversations/{name}", json={"title": evil})
    shown = [ask("conversations", "list")[1], ask("conversations", "list", "--json")[1]]
    shown += [ask("turns", what, name, *more)[1] for what, *more in (["list"], ["show", "1"], ["events", "1"])]
    for text in shown:
        assert "end" in text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), text
    assert json.loads(shown[3])["reply"] == evil
    assert "\u241b[2J" in shown[0]


def test_a_conversation_and_its_turns_are_shown(service: Service, ask: Callable[..., Ending]) -> None:
    name = played(service, ECHO, DONE)
    shown, found = json.loads(ask("conversations", "show", name)[1]), service.get(f"/conversations/{name}")
    assert shown.keys() == found.keys()
    assert (shown["id"], shown["turn_count"], shown["title"]) == (name, 1, found["title"])
    assert json.loads(ask("turns", "show", name, "1")[1])["tool_call_names"] == ["echo"]
    _, table, _ = ask("turns", "list", name)
    assert table.splitlines()[1].split()[:4] == ["1", "finished", "2", "echo"]
    assert json.loads(ask("turns", "list", name, "--json")[1])["reply"] == "done"
    _, table, _ = ask("turns", "list", service.play(ECHO, max_steps=1)["conversation_id"])
    assert "out of steps" in table.splitlines()[1]
    _, fork, _ = ask("conversations", "fork", name, "--turn", "1")
    shown = json.loads(ask("conversations", "rollback", fork.strip(), "0")[1])
    assert (shown["forked_from"]["conversation_id"], shown["archived_steps"]) == (name, 3)
    _, table, _ = ask("turns", "list", fork.strip())
    assert table.splitlines()[1].split()[:4] == ["1", "finished,", "rolled", "back"]
    _, table, _ = ask("turns", "list", service.play({"raise": "no"})["conversation_id"])
    assert table.splitlines()[1].split()[:3] == ["1", "failed:", "model_error"]
    events = [json.loads(line) for line in ask("turns", "events", name, "1")[1].splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "turn.finished"
    assert json.loads(ask("turns", "events", name, "1", "--after", str(len(events) - 1))[1]) == events[-1]


def test_an_exported_conversation_is_imported(service: Service, ask: Callable[..., Ending], tmp_path: Path) -> None:
    name = played(service, ECHO, DONE)
    file, other = tmp_path / "exported.json", tmp_path / "other.json"
    link, part = tmp_path / "link.json", tmp_path / "link.json.part"
    link.symlink_to(file)
    file.touch(0o640)
    part.write_text("the reader's own")
    assert ask("conversations", "export", name, "-o", str(link)) == (0, "", "")
    assert (link.is_symlink(), file.stat().st_mode & 0o777) == (True, 0o640)
    assert (part.read_text(), {*tmp_path.glob("*.part"), *tmp_path.glob(".*.part")}) == ("the reader's own", {part})
    other.write_text(ask("conversations", "export", name)[1], "utf-8")
    assert json.loads(file.read_text("utf-8"))["steps"] == json.loads(other.read_text("utf-8"))["steps"]
    status, names, errors = ask("conversations", "import", str(file), str(other), "--agent", "planner")
    assert (status, errors) == (0, ""), errors
    for made in names.split():
        assert service.get(f"/conversations/{made}")["agent"] == "planner"
        assert len(service.get(f"/conversations/{made}/steps")["items"]) == 3
    assert len(set(names.split())) == 2


def test_a_deletion_asks_first(service: Service, ask: Callable[..., Ending], tmp_path: Path) -> None:
    url = service.url
    kept, first, second = (played(service, DONE) for _ in range(3))
    unasked = run_program([*command("conversations", "delete", kept, "--url", url)], input="", cwd=ROOT)
    assert unasked.returncode == 1
    assert unasked.stderr.endswith("smolsessions: nothing was deleted; answer y, or use --yes\n")
    with terminal_of(tmp_path, *command("conversations", "delete", first, second, "--url", url)) as terminal:
        terminal.reply("Delete 2 permanently", "y")
        terminal.wait_for("deleting")
        assert terminal.process.wait(PATIENCE_S) == 0
    statuses = [service.client.get(f"/conversations/{each}").status_code for each in (kept, first, second)]
    assert statuses == [200, 404, 404]
    assert ask("conversations", "delete", "--yes", kept) == (0, "", ""), "progress is for terminals"
    assert service.client.get(f"/conversations/{kept}").status_code == 404


def test_keys_open_what_they_were_made_for_and_each_is_new(tmp_path: Path) -> None:
    made = [run(tmp_path, {}, "keys", "seal") for _ in range(2)]
    assert [(status, errors) for status, _, errors in made] == [(0, "")] * 2
    (name, key), (other_name, other) = (output.strip().split(":") for _, output, _ in made)
    assert (bool(name), len(base64.b64decode(key))) == (True, 32)
    assert (name != other_name, key != other) == (True, True)
    _, line, said = run(tmp_path / "owner", {}, "keys", "owner", "ada")
    key = said.splitlines()[-1]
    assert line == f"ada {hashlib.sha256(key.encode()).hexdigest()}\n"


def test_a_refusal_of_the_service_is_one_sentence(ask: Callable[..., Ending]) -> None:
    status, output, errors = ask("turns", "list", "unknown")
    assert (status, output) == (1, "")
    assert errors.startswith("smolsessions: 404 conversation_not_found: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("setting", ["port = {0.client.base_url.port}", "data_dir = '{0.folder}/data'"])
def test_the_settings_of_a_folder_find_its_service(setting: str, service: Service, tmp_path: Path) -> None:
    (tmp_path / "smolsessions.toml").write_text(setting.format(service))
    status, _, errors = run(tmp_path, {"PORT": "", "DATA_DIR": ""}, "conversations", "list", cwd=tmp_path)
    assert status == 0, errors
