"""Workspaces of conversations over HTTP: turns that write, exports, forks, rollbacks, deletions, other processes."""

import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from smolsessions.client import Client
from tests.support.data import data, table
from tests.support.owners import ADA, BOB, owner_line, request_as
from tests.support.problems import problem
from tests.support.service import Service, run, wait_until, write_agents, write_private
from tests.support.sounds import sent
from tests.support.store_server import StoreServer

AGENTS_FILE = data("workspace.toml")
MARK = ".identity"
WRITE = {"call": [["write_file", {"path": "notes/plan.md", "content": "Buy milk.\n"}]]}
READ = {"call": [["read_file", {"path": "notes/plan.md"}]]}
DONE = {"say": "done"}
EMPTY: dict[str, Any] = {"format": "smolsessions/conversation", "version": 1, "agent": "writer", "steps": []}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspaces")
    (folder / "handbook").mkdir()
    (folder / "handbook/rules.md").write_text("Be kind.\n")
    (folder / "handbook/door.key").write_text("1234")
    (folder / "agents.toml").write_text(AGENTS_FILE)
    return folder


@contextmanager
def started(folder: Path, **settings: str) -> Iterator[Service]:
    settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": str(folder / "agents.toml")} | settings
    with Service(folder, settings) as service:
        yield service


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    with started(folder) as service:
        yield service


def results(service: Service, turn: dict[str, Any]) -> list[str]:
    steps = [step for step in service.steps(turn) if step["turn"] == turn["turn"] and step["type"] == "action"]
    return [step["observations"].strip() for step in steps if step["observations"]]


def files_in(folder: Path) -> dict[str, str]:
    return {str(it.relative_to(folder)): it.read_text() for it in folder.rglob("*") if it.is_file() and it.name != MARK}


def folder_of(folder: Path, conversation_id: str, owner: str = "local") -> Path:
    return folder / "data/workspaces" / owner / conversation_id


def test_a_conversation_has_files_that_its_next_turns_find(service: Service, folder: Path) -> None:
    first = service.play({"say": "hello"}, agent="writer")
    mine = folder_of(folder, first["conversation_id"])
    assert not mine.exists()
    turn = service.follow_up(first, WRITE, DONE)
    assert turn["tool_call_names"] == ["write_file"]
    assert files_in(mine) == {"notes/plan.md": "Buy milk.\n"}
    edit = {"call": [["edit_file", {"path": "notes/plan.md", "old": "milk", "new": "bread"}]]}
    search = {"call": [["glob", {"pattern": "**"}]]}
    turn = service.follow_up(turn, edit, READ, search, {"call": [["grep", {"pattern": "b.*d"}]]}, DONE)
    assert results(service, turn)[:4] == [
        "Replaced the text.",
        "Buy bread.",
        "notes/plan.md",
        "notes/plan.md:1: Buy bread.",
    ]
    assert results(service, service.play(READ, DONE, agent="writer"))[0].startswith("[denied] there is no file")


def test_files_that_the_agent_may_read_are_listed_and_served_as_downloads(service: Service, folder: Path) -> None:
    turn = service.play(WRITE, DONE, agent="writer")
    at = f"/conversations/{turn['conversation_id']}/workspace/files"
    mine = folder_of(folder, turn["conversation_id"])
    (mine / 'notes/é "x".html').write_bytes(b"<script>")
    for hidden in ("secrets/key.txt", "notes/large.bin"):
        (mine / hidden).parent.mkdir(exist_ok=True)
        (mine / hidden).write_bytes(b"secret" if hidden[0] == "s" else bytes(256 * 1024 + 1))
    (mine / "notes/link.md").symlink_to(folder / "handbook/door.key")
    listed = {each["path"]: each for each in service.get(at)["items"]}
    assert {path: each["size_bytes"] for path, each in listed.items()} == {"notes/plan.md": 10, 'notes/é "x".html': 8}
    assert abs(datetime.fromisoformat(listed["notes/plan.md"]["modified_at"]).timestamp() - time.time()) < 600
    page = service.client.get(listed['notes/é "x".html']["url"])
    assert (page.content, page.headers["content-type"]) == (b"<script>", "application/octet-stream")
    assert page.headers["content-disposition"].startswith(
        "attachment; filename=\"_ _x_.html\"; filename*=UTF-8''%C3%A9"
    )
    assert (page.headers["cache-control"], page.headers["x-content-type-options"]) == ("no-store", "nosniff")
    with Client(service.url) as client:
        assert [each.path for each in client.list_workspace_files(turn["conversation_id"])] == sorted(listed)
        assert client.get_workspace_file(turn["conversation_id"], "notes/plan.md") == b"Buy milk.\n"
    for path in ("secrets/key.txt", "secrets", "notes", "notes/link.md", "notes//plan.md", "absent", "notes/large.bin"):
        problem(service.client.get(f"{at}/{path}"), 404, "not_found")
    for path in ("..%2f..%2f..%2fseal.key", "%2fetc%2fpasswd", "notes/..%2fnotes/plan.md", "%00", "%ff"):
        assert service.client.get(f"{at}/{path}").status_code == 404
    for agent in ("plain", "reader"):  # without a workspace, and with a directory that is no conversation's
        other = service.play(DONE, agent=agent)["conversation_id"]
        assert service.get(f"/conversations/{other}/workspace/files") == {"items": [], "complete": True}
        problem(service.client.get(f"/conversations/{other}/workspace/files/rules.md"), 404, "not_found")


def test_a_file_of_the_message_gets_into_the_workspace_under_its_own_name(service: Service, folder: Path) -> None:
    text = "city,people\nParis,2\n"
    write = {"call": [["write_file", {"path": "notes/data.csv", "content": "data.csv"}]]}
    names = {"call": [["write_file", {"path": "data.csv", "content": "data.csv"}]]}
    search = {"call": [["grep", {"pattern": "Paris", "glob": "data.csv"}]]}
    turn = service.play(write, names, search, DONE, agent="writer", files=[sent("data.csv", "text/csv", text)])
    assert files_in(folder_of(folder, turn["conversation_id"])) == {"notes/data.csv": text}
    assert results(service, turn)[1:3] == ["[denied] this path is read-only", "notes/data.csv:2: Paris,2"]


def test_a_denial_is_a_result_and_never_tells_whether_a_hidden_file_exists(service: Service, folder: Path) -> None:
    first = service.play(WRITE, DONE, agent="writer")
    hidden = folder_of(folder, first["conversation_id"]) / "secrets/key.txt"
    script = [{"call": [call]} for call in table("workspace denials")]

    def answers() -> tuple[list[str], dict[str, Any]]:
        turn = service.play(*script[:5], DONE, agent="writer", conversation_id=first["conversation_id"])
        more = service.follow_up(turn, *script[5:], DONE)
        assert [call["ok"] for call in turn["tool_calls"] + more["tool_calls"]] == [True] * 9
        return results(service, turn)[:5] + results(service, more)[:4], more

    absent, _ = answers()
    hidden.parent.mkdir()
    hidden.write_text("secret")
    there, turn = answers()
    assert there == absent
    assert [each.split()[0] for each in there] == ["[denied]"] * 9
    assert hidden.read_text() == "secret"
    export = service.client.get(f"/conversations/{turn['conversation_id']}/export").json()
    assert list(export["workspace"]) == ["notes/plan.md"]


def test_code_in_a_child_process_has_the_tools_and_not_the_folder(service: Service, folder: Path) -> None:
    code = """
write_file(path="a.md", content="one\\ntwo\\n")
print(read_file(path="a.md"), read_file(path="../x"), grep(pattern="tw.", glob="*.md"))
"""
    turn = service.play({"code": code}, DONE, agent="coder")
    assert "two\n [denied] a path is relative" in results(service, turn)[0]
    assert "a.md:2: two" in results(service, turn)[0]
    assert turn["tool_call_names"] == ["write_file", "read_file", "read_file", "grep"]
    assert files_in(folder_of(folder, turn["conversation_id"])) == {"a.md": "one\ntwo\n"}


def test_code_that_may_import_os_sees_neither_workspaces_nor_given_directories(service: Service, folder: Path) -> None:
    first = service.play({"say": "hello"}, agent="walled")
    write = 'write_file(path="notes/a.md", content="mine")'
    places = [str(folder_of(folder, first["conversation_id"]) / "notes/a.md"), str(folder / "handbook/door.key")]
    code = f"""
{write}
import os
for place in {places!r}:
    try:
        print(os.read(os.open(place, os.O_RDONLY), 9))
    except OSError as error:
        print("closed", error.errno)
"""
    turn = service.follow_up(first, {"code": code}, DONE)
    assert service.get("/agents/walled")["code_confinement"] in {"namespaces", "landlock"}
    assert results(service, turn)[0].count("closed") == len(places)
    assert Path(places[0]).read_text() == "mine"


def test_a_given_directory_is_read_by_all_conversations_and_written_by_none(service: Service, folder: Path) -> None:
    before = files_in(folder / "handbook")
    read = {"call": [["read_file", {"path": "rules.md"}]]}
    turn = service.play(read, {"call": [["glob", {"pattern": "**"}]]}, DONE, agent="reader")
    assert results(service, turn)[:2] == ["Be kind.", "rules.md"]
    tools = {tool["name"] for tool in service.get("/agents/reader")["tools"]}
    assert {"read_file", "glob", "grep"} <= tools
    assert not {"write_file", "edit_file"} & tools
    assert files_in(folder / "handbook") == before
    assert "workspace" not in service.client.get(f"/conversations/{turn['conversation_id']}/export").json()
    service.client.delete(f"/conversations/{turn['conversation_id']}")
    assert files_in(folder / "handbook") == before


def test_a_fork_copies_the_files_and_a_rollback_leaves_them(service: Service, folder: Path) -> None:
    turn = service.play({"say": "hello"}, agent="writer")
    place = f"/conversations/{turn['conversation_id']}"
    service.follow_up(turn, WRITE, DONE)
    fork = service.post(f"{place}/fork", turn=1).json()
    rolled = service.post(f"{place}/rollback", turn=1)
    assert rolled.status_code == 200, rolled.text
    assert files_in(folder_of(folder, turn["conversation_id"])) == {"notes/plan.md": "Buy milk.\n"}
    edit = {"call": [["edit_file", {"path": "notes/plan.md", "old": "milk", "new": "tea"}]]}
    service.play(edit, DONE, agent="writer", conversation_id=fork["id"])
    assert files_in(folder_of(folder, fork["id"])) == {"notes/plan.md": "Buy tea.\n"}
    assert files_in(folder_of(folder, turn["conversation_id"])) == {"notes/plan.md": "Buy milk.\n"}


def test_an_import_writes_no_file_that_the_agent_could_not_read(service: Service, folder: Path) -> None:
    before = files_in(folder / "data/workspaces")
    for path in ("../out.md", "/etc/motd", "notes\\a", "secrets/a", "notes/../a", "a//b", "", ".identity/../x"):
        refused = service.post("/imports", **EMPTY, workspace={path: b64encode(b"x").decode()})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request"), path
        assert refused.json()["errors"][0]["pointer"].startswith("/workspace")
        assert files_in(folder / "data/workspaces") == before


def test_an_import_is_bounded_like_a_workspace(service: Service) -> None:
    cases: dict[str, dict[str, str]] = {
        "no base64": {"notes/a": "no base64!"},
        "large": {"notes/a": b64encode(b"x" * (256 * 1024 + 1)).decode()},
        "many": {f"notes/{number}": "" for number in range(1001)},
        "full": {f"notes/{number}": b64encode(b"x" * 256 * 1024).decode() for number in range(33)},
        "file and folder": {"notes/a": "", "notes/a/b": ""},
    }
    for name, files in cases.items():
        refused = service.post("/imports", **EMPTY, workspace=files)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request"), name
    other = service.post("/imports", **EMPTY | {"agent": "plain"}, workspace={"notes/a": ""})
    assert other.status_code == 422, other.text


def test_a_deleted_conversation_leaves_no_file(service: Service, folder: Path) -> None:
    turn = service.play(WRITE, DONE, agent="writer")
    mine = folder_of(folder, turn["conversation_id"])
    assert mine.exists()
    assert service.client.delete(f"/conversations/{turn['conversation_id']}").status_code == 204
    assert not mine.exists()
    assert not [it for it in (folder / "data/workspaces").iterdir() if it.name.startswith(".smolsessions-deleted-")]


def test_the_agents_tools_are_described_without_its_hidden_patterns(service: Service) -> None:
    described = service.get("/agents/writer")
    tools = {tool["name"]: tool for tool in described["tools"]}
    assert {"read_file", "write_file", "edit_file", "glob", "grep"} <= tools.keys()
    assert "notes/**" in tools["write_file"]["description"]
    assert tools["grep"]["parameters"]["required"] == ["pattern"]
    assert "secrets" not in json.dumps(described)


def test_owners_with_the_same_id_have_files_of_their_own(folder: Path, tmp_path: Path) -> None:
    keys = write_private(tmp_path / "keys", owner_line("ada", ADA) + owner_line("Ada", BOB))
    (tmp_path / "agents.toml").write_text(AGENTS_FILE.replace('"handbook"', f'"{folder}/handbook"'))
    with started(tmp_path, API_KEYS_FILE=str(keys)) as service:
        for key in (ADA, BOB):
            made = request_as(service, key, "POST", "/imports?id=same", EMPTY)
            assert made.status_code == 201, made.text
        body = {"message": json.dumps([WRITE, DONE]), "conversation_id": "same"}
        assert request_as(service, ADA, "POST", "/turn", body).json()["reply"] == "done"
        body["message"] = json.dumps([READ, {"shown": True}])
        assert "[denied] there is no file" in request_as(service, BOB, "POST", "/turn", body).json()["reply"]
        request_as(service, BOB, "DELETE", "/conversations/same")
    assert files_in(tmp_path / "data/workspaces") == {"ada/same/notes/plan.md": "Buy milk.\n"}


def test_a_restart_sweeps_files_of_conversations_that_are_gone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text(AGENTS_FILE.replace('"handbook"', f'"{folder}/handbook"'))
    with started(tmp_path) as service:
        turn = service.play(WRITE, DONE, agent="writer")
    kept = folder_of(tmp_path, turn["conversation_id"])
    left = folder_of(tmp_path, "gone")
    left.mkdir()
    (left / "a.md").write_text("of a conversation whose time to live was over")
    (tmp_path / "data/workspaces/.smolsessions-deleted-1").mkdir()
    halves = [tmp_path / f"data/workspaces/.smolsessions-new-{number}" for number in range(2)]
    pending = folder_of(tmp_path, "pending")
    for each in (*halves, pending):
        each.mkdir()
    for old in (left, halves[0]):
        os.utime(old, (0, 0))
    (tmp_path / "data/workspaces/lost+found/a").mkdir(parents=True)
    (tmp_path / "data/workspaces/\udcff").mkdir()  # the byte 255
    with started(tmp_path):
        wait_until(lambda: not left.exists())
    assert [each.exists() for each in (kept, pending, *halves)] == [True, True, False, True]
    assert not (tmp_path / "data/workspaces/.smolsessions-deleted-1").exists()
    assert (tmp_path / "data/workspaces/lost+found/a").exists()


def test_a_directory_of_other_files_or_of_another_store_is_refused(folder: Path, tmp_path: Path) -> None:
    settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": str(folder / "agents.toml")}
    (tmp_path / "mine/letters").mkdir(parents=True)
    for each in (".snapshot", "lost+found"):
        (tmp_path / "shared" / each).mkdir(parents=True)
    status, _, errors = run(tmp_path / "one", settings | {"WORKSPACES_DIR": str(tmp_path / "mine")})
    assert (status, "holds files, but not .identity" in errors) == (2, True), errors
    with started(folder, DATA_DIR=str(tmp_path / "a"), WORKSPACES_DIR=str(tmp_path / "shared")) as service:
        service.play(WRITE, DONE, agent="writer")
    settings |= {"WORKSPACES_DIR": str(tmp_path / "shared"), "DATA_DIR": str(tmp_path / "b")}
    status, _, errors = run(tmp_path / "two", settings)
    assert (status, "is not the directory that this store's conversations have" in errors) == (2, True), errors
    assert len(list((tmp_path / "shared").rglob("plan.md"))) == 1


def test_web_and_work_share_the_files_or_do_not_start(server: StoreServer, folder: Path, tmp_path: Path) -> None:
    settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": str(folder / "agents.toml")} | server.settings
    shared = {"WORKSPACES_DIR": str(tmp_path / "shared")}
    with (
        Service(tmp_path / "web", settings | shared, command=("web",)) as web,
        Service(tmp_path / "work", settings | shared, command=("work",)),
    ):
        turn = web.play(WRITE, DONE, agent="writer")
        export = web.client.get(f"/conversations/{turn['conversation_id']}/export").json()
        assert b64decode(export["workspace"]["notes/plan.md"]) == b"Buy milk.\n"
        refused = run(tmp_path / "more", settings | {"WORKSPACES_DIR": str(tmp_path / "own")}, "work")
        assert (refused[0], "use the same one in every process" in refused[2]) == (2, True), refused
        web.client.delete(f"/conversations/{turn['conversation_id']}")
    assert files_in(tmp_path / "shared") == {}


def test_a_list_and_an_export_of_files_that_a_bound_cuts_say_so(service: Service, folder: Path) -> None:
    turn = service.play(WRITE, DONE, agent="writer")
    at = f"/conversations/{turn['conversation_id']}/workspace/files"
    assert service.get(at)["complete"]
    many = folder_of(folder, turn["conversation_id"]) / "many"
    many.mkdir()
    for number in range(20_000):
        (many / str(number)).touch()
    listed = service.get(at)
    assert not listed["complete"]
    assert 0 < len(listed["items"]) < 20_000
    conversation = f"/conversations/{turn['conversation_id']}"
    missing = service.get(f"{conversation}/export")["not_exported"]
    assert [(each["kind"], each["name"]) for each in missing] == [("workspace", "")]
    assert "20000 files" in problem(service.post(f"{conversation}/fork"), 413, "too_large")["detail"]


WRITER = """
[agents.writer]
factory = "tests.support.agents:make_scripted"
workspace = {editable = ["**"]}
"""


def test_an_import_whose_files_cannot_be_written_leaves_no_conversation(tmp_path: Path) -> None:
    settings = write_agents(tmp_path, WRITER)
    with Service(tmp_path, settings | {"WORKSPACES_DIR": str(tmp_path / "workspaces")}) as service:
        empty = service.post("/conversations", agent="writer").json()
        document = service.get(f"/conversations/{empty['id']}/export")
        (tmp_path / "workspaces/local").write_text("a file in place of the owner's folder")
        document["workspace"] = {"notes.md": b64encode(b"hi").decode()}
        problem(service.post("/imports?id=unwritten", **document), 500, "internal")
        problem(service.client.get("/conversations/unwritten"), 404, "conversation_not_found")
        assert "cannot be written" in service.log()


@pytest.mark.parametrize("change", ["import", "fork"])
def test_a_killed_process_leaves_no_conversation_with_some_of_its_files(tmp_path: Path, change: str) -> None:
    settings = write_agents(tmp_path, WRITER)
    files = {f"{number:03}.md": b64encode(b"x" * 4000).decode() for number in range(900)}
    folders = tmp_path / "data/workspaces"
    service = Service(tmp_path, settings)
    with service:
        empty = service.post("/conversations", agent="writer").json()
        document = service.get(f"/conversations/{empty['id']}/export") | {"workspace": files}
        assert service.post("/imports?id=whole", **document).status_code == 201
        known = set(folders.rglob("*"))
        with ThreadPoolExecutor() as thread:
            if change == "import":
                asked = thread.submit(service.post, "/imports?id=new", **document)
            else:
                asked = thread.submit(service.post, "/conversations/whole/fork")
            wait_until(lambda: len(set(folders.rglob("*")) - known) > 20)
            service.kill()
            asked.exception()
    with Service(tmp_path, settings) as service:
        found = [each["id"] for each in service.get("/conversations")["items"] if each["id"] != empty["id"]]
        for conversation in found:
            assert len(service.get(f"/conversations/{conversation}/workspace/files")["items"]) == len(files)
