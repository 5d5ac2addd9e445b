"""Files of a new conversation that cannot be written: it is not made."""

from base64 import b64encode
from pathlib import Path

from tests.support.problems import problem
from tests.support.service import Service

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
        problem(service.post("/conversations/import?id=unwritten", **document), 500, "internal")
        problem(service.client.get("/conversations/unwritten"), 404, "conversation_not_found")
        assert "cannot be written" in service.log()
