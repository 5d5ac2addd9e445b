"""Files beneath a root under an access list: what the workspace tools of agents work on. It knows no smolagents."""

from smolsessions.workspace.bounds import Bounds, Found, Match
from smolsessions.workspace.paths import ToolDenied
from smolsessions.workspace.workspace import Workspace

__all__ = ["Bounds", "Found", "Match", "ToolDenied", "Workspace"]
