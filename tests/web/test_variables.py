"""GET …/variables: what an agent keeps between turns, with previews and sizes."""

from pathlib import Path

from tests.support.service import Service

CODER = {"AGENTS": "coder=browser_tests.talker:make_coder", "DEMO_AGENTS": "0"}


def test_variables_are_listed_with_previews_sizes_and_reasons(tmp_path: Path) -> None:
    code = "<code>\nx = [1, 2]\nlong = 'a' * 2000\nf = lambda: 1\nfinal_answer('kept')\n</code>"
    with Service(tmp_path, CODER) as service:
        said = service.play({"write": [code]}, agent="coder", additional_args={"city": "Bonn"})
        assert said["reply"] == "kept"
        items = service.get(f"/conversations/{said['conversation_id']}/variables")["items"]
    found = {(item["kind"], item["name"]): item for item in items}
    own = {"agent": "", "kind": "variable", "name": "x", "preview": "[1,2]", "size_bytes": 5, "reason": None}
    assert found["variable", "x"] == own
    assert len(found["variable", "long"]["preview"]) == 500
    assert found["variable", "long"]["size_bytes"] == 2002
    assert found["variable", "f"]["preview"] is None
    assert "function" in found["variable", "f"]["reason"]
    assert any(item["name"] == "city" and item["preview"] == '"Bonn"' for item in items)
