"""What an agent is, as a hash: a turn that one process began is replayed by the very same agent."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from app.agents.plain import plain

if TYPE_CHECKING:
    from smolagents import MultiStepAgent

_OPTIONS = "max_steps planning_interval instructions additional_authorized_imports code_block_tags executor".split()


def fingerprint_of(first: MultiStepAgent, second: MultiStepAgent) -> str:
    """Hash prompts, tools and options; what differs between two agents of one factory (a date, say) is left out."""
    parts, others = _parts(first), _parts(second)
    same = {name: part for name, part in parts.items() if others.get(name) == part}
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


def _parts(agent: MultiStepAgent, path: str = "") -> dict[str, Any]:
    parts: dict[str, Any] = {
        "kind": type(agent).__qualname__,
        "model": [type(agent.model).__qualname__, str(getattr(agent.model, "model_id", ""))],
        "system_prompt": str(agent.initialize_system_prompt()),
        "templates": plain(dict(agent.prompt_templates)),
        **{name: plain(getattr(agent, name, None)) for name in _OPTIONS},
    }
    for name, tool in agent.tools.items():
        parts[f"tool {name}"] = [tool.description, plain(tool.inputs), tool.output_type]
    found = {f"{path}:{name}": part for name, part in parts.items()}
    for name, managed in agent.managed_agents.items():
        found |= _parts(managed, f"{path}/{name}")
    return found
