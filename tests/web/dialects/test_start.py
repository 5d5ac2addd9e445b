"""Start with all dialects: none is imported before its first request."""

import subprocess
import sys

from tests.support.service import Service

PROGRAM = """
import sys
from smolsessions.web import app, auth, dialects
limits = app.Limits("", 0, 0, 0, 0, 0, 0, 0, 0, 0)
app.create_app(
    None, None, authenticator=auth.Authenticator(None, loopback=True), metrics_text=None, limits=limits,
    dialects=dialects.NEEDS,
)
below = tuple(f"smolsessions.web.dialects.{name.replace('-', '_')}" for name in dialects.NEEDS)
print([name for name in sys.modules if name.startswith(below) or name in {"mcp", "openai", "ag_ui", "a2a"}])
"""


def test_a_start_imports_no_dialect() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_paths_beside_those_of_a_dialect_are_not_found(service: Service) -> None:
    asked = {path: service.client.get(path) for path in ("/openai", "/openai/v1/no", "/ai-sdks/plain", "/mcp/x")}
    assert {answer.status_code for answer in asked.values()} == {404}
    assert asked["/openai/v1/no"].json()["error"]["code"] == "not_found"
    for path in ("/mcp", "/ai-sdk/plain", "/openai/v1/responses"):
        assert service.client.get(path).status_code == 405
