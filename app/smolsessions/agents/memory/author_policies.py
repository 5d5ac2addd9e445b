"""The memory policy that an agent's author gave it, and the functions that its conversations may name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pydantic import ValidationError
from smolagents import MultiStepAgent

from smolsessions.agents.memory.policies import check_own_rules
from smolsessions.core.errors import InvalidRequestError, StartError
from smolsessions.core.policies import policy_of, what_is_wrong

if TYPE_CHECKING:
    from smolsessions.agents.memory.policies import PolicyFunction
    from smolsessions.core.policies import Policy


def import_own_policies(name: str, agent: MultiStepAgent) -> dict[str, PolicyFunction]:
    """Import the functions `(steps) -> steps` that are listed as `own_policies`."""
    named = getattr(agent, "own_policies", ())
    if not isinstance(named, list | tuple):
        raise StartError(f"the agent {name!r} has own_policies = {named!r}; make it a list of module:function")
    functions = {}
    for each in map(str, named):
        try:
            functions[each] = _imported(each)
        except (Exception, SystemExit) as error:
            raise StartError(
                f"the agent {name!r} names the policy {each!r}, which cannot be imported "
                f"({type(error).__name__}: {error}); write it as module:function"
            ) from error
    return functions


def agent_policy(name: str, agent: MultiStepAgent, own: dict[str, PolicyFunction]) -> Policy:
    """Read what is written as `memory_policy` (without it nothing is bounded), and check `summary_model`."""
    try:
        policy = policy_of(getattr(agent, "memory_policy", []))
        check_own_rules(policy, own, "memory_policy")
    except ValidationError as error:
        raise StartError(f"the memory_policy of agent {name!r} is none: {what_is_wrong(error)}") from error
    except InvalidRequestError as error:
        raise StartError(f"the memory_policy of agent {name!r} is none: {error}") from error
    if policy and type(agent).write_memory_to_messages is not MultiStepAgent.write_memory_to_messages:
        raise StartError(
            f"the agent {name!r} has a memory_policy, and its class a write_memory_to_messages of its own, which would "
            "not heed it; leave one of them out"
        )
    model = getattr(agent, "summary_model", None)
    if model is not None and not callable(getattr(model, "generate", None)):
        raise StartError(f"the agent {name!r} has summary_model = {model!r}; make it a smolagents model")
    return policy


def _imported(name: str) -> PolicyFunction:
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    if not callable(function):
        raise TypeError(f"{attribute} is no function")
    called: PolicyFunction = function
    return called
