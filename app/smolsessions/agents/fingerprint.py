"""What an agent is, as a hash: a turn that one process began is replayed by the very same agent."""

from __future__ import annotations

import hashlib
import json
import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from smolsessions.agents.values.json_forms import json_form

if TYPE_CHECKING:
    from smolagents import MultiStepAgent

_DATE = re.compile(
    r"\d|\b(mon|tues|wednes|thurs|fri|satur|sun)day\b|\b(january|february|march|april|may|june|july|august|september|"
    r"october|november|december|mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|jun|jul|aug|sep|oct|nov|dec)\b",
    re.IGNORECASE,
)
_OPTIONS = "max_steps planning_interval additional_authorized_imports code_block_tags executor".split()


def fingerprint_of(first: MultiStepAgent, second: MultiStepAgent) -> str:
    """Hash prompts, tools and options; what differs between two agents of one factory is left out, and so are dates.

    An agent that says itself what it is (`agent.fingerprint = "…"`) is believed.
    """
    own = getattr(first, "fingerprint", None)
    if isinstance(own, str):
        return hashlib.sha256(own.encode()).hexdigest()[:16]
    parts, others = _parts(first), _parts(second)
    same = {name: part for name, part in parts.items() if others.get(name) == part}
    text = json.dumps([version("smolagents"), same], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parts(agent: MultiStepAgent, path: str = "") -> dict[str, Any]:
    parts: dict[str, Any] = {
        "kind": type(agent).__qualname__,
        "model": [type(agent.model).__qualname__, str(getattr(agent.model, "model_id", ""))],
        "system_prompt": _DATE.sub("", str(agent.initialize_system_prompt())),
        "templates": _DATE.sub("", json.dumps(json_form(dict(agent.prompt_templates)))),
        "instructions": _DATE.sub("", str(agent.instructions)),
        **{name: json_form(getattr(agent, name, None)) for name in _OPTIONS},
    }
    for name, tool in agent.tools.items():
        parts[f"tool {name}"] = [tool.description, json_form(tool.inputs), tool.output_type]
    found = {f"{path}:{name}": part for name, part in parts.items()}
    for name, managed in agent.managed_agents.items():
        found |= _parts(managed, f"{path}/{name}")
    return found
