"""Options of Chromium and of its profiles in the tests."""

from typing import Any

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Without a graphics card, the marks that pulse while a turn runs keep a core busy.
PROFILE: dict[str, Any] = {"viewport": {"width": 1280, "height": 860}, "reduced_motion": "reduce"}
