"""GET …/variables: what an agent keeps between turns, with previews and sizes."""

from tests.support.code_turns import code_script
from tests.support.service import Service


def test_variables_are_listed_with_previews_sizes_and_reasons(service: Service) -> None:
    code = "x = [1, 2]\nlong = 'a' * 2000\nf = lambda: 1\nfinal_answer('kept')"
    said = service.play(*code_script(code), agent="coder", additional_args={"city": "Bonn"})
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
