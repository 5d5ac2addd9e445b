"""Memory policy and policy functions that an agent's author sets as options of the agent."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import ValidationError
from smolagents import MultiStepAgent

from smolsessions.agent_options import options_of
from smolsessions.agents.imports import import_named
from smolsessions.agents.memory.policies import PolicyFunction
from smolsessions.core.errors import InvalidRequestError, StartError
from smolsessions.core.policies import OwnRule, Policy, policy_of, what_is_wrong


def import_own_policies(name: str, agent: MultiStepAgent) -> dict[str, PolicyFunction]:
    """Import the functions `(steps) -> steps` that the agent lists as `own_policies`."""
    functions = {}
    for path in options_of(agent).own_policies:
        module, _, function = path.partition(":")
        try:
            functions[path] = import_named(module, function, "function", "write it as module:function")
        except StartError as error:
            raise StartError(f"the agent {name!r} names the policy {path!r}: {error.message}") from error
    return functions


def agent_policy(name: str, agent: MultiStepAgent, own_policies: Collection[str]) -> Policy:
    """Return the agent's `memory_policy`, by default an empty one, and check its `summary_model`."""
    try:
        policy = policy_of(options_of(agent).memory_policy)
        check_own_rules(policy, own_policies, "memory_policy")
    except (ValidationError, InvalidRequestError) as error:
        reason = what_is_wrong(error) if isinstance(error, ValidationError) else error
        raise StartError(f"the memory_policy of agent {name!r} is invalid: {reason}") from error
    if policy and type(agent).write_memory_to_messages is not MultiStepAgent.write_memory_to_messages:
        raise StartError(
            f"the agent {name!r} has a memory_policy, but its class overrides write_memory_to_messages, which would "
            "ignore the policy; remove one of them"
        )
    model = options_of(agent).summary_model
    if model is not None and not callable(getattr(model, "generate", None)):
        raise StartError(f"the agent {name!r} has summary_model = {model!r}; make it a smolagents model")
    return policy


def check_own_rules(policy: Policy, own_policies: Collection[str], pointer: str) -> None:
    """Refuse functions that the agent does not list: otherwise a client could run any function."""
    for place, rule in enumerate(policy):
        if isinstance(rule, OwnRule) and rule.name not in own_policies:
            listed = ", ".join(own_policies) or "none"
            raise InvalidRequestError.at(
                f"{pointer}/{place}/name", f"is no policy of this agent's own (its own_policies: {listed})"
            )
