"""Files of a new conversation that cannot be written, or not all of them: it is not made."""

from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.problems import problem
from tests.support.service import Service, wait_until

AGENTS_FILE = """
[agents.writer]
factory = "tests.support.agents:make_scripted"
workspace = {editable = ["**"]}
"""


def test_an_import_whose_files_cannot_be_written_leaves_no_conversation(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text(AGENTS_FILE)
    settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": str(tmp_path / "agents.toml")}
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
    (tmp_path / "agents.toml").write_text(AGENTS_FILE)
    settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": str(tmp_path / "agents.toml")}
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
