"""Checks of an agent's options, and of the tools that a caller names."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Collection

from pydantic import ValidationError
from smolagents import MultiStepAgent

from smolsessions.agent_options import ATTRIBUTE, Options, nearest, options_of
from smolsessions.agents.config.mistakes import mistakes_in
from smolsessions.agents.imports import import_named
from smolsessions.agents.memory.policies import PolicyFunction
from smolsessions.agents.models.prompt_cache import cache_prompts
from smolsessions.agents.models.providers import check_model, disable_client_retries, with_fallbacks
from smolsessions.agents.run.approvals import matches
from smolsessions.agents.run.instrumentation import code_runs_in, with_managed
from smolsessions.agents.tools.output_schema import check_output_schema
from smolsessions.core.errors import InvalidRequestError, StartError
from smolsessions.core.policies import OwnRule, Policy, policy_of

log = logging.getLogger(__name__)

UNCONFINED = (
    "its code could reach this service and approve its own calls, as this system confines code with neither namespaces "
    "nor Landlock (docs/security.md)"
)
_METHODS = (property, classmethod, staticmethod)


def validate_options(name: str, agent: MultiStepAgent) -> None:
    """Validate the values that a factory set on an agent. Raises `StartError`."""
    for each in with_managed(agent):
        try:
            setattr(each, ATTRIBUTE, Options.model_validate(dict(options_of(each))))
        except ValidationError as error:
            raise StartError(mistakes_in(error, ("options", name))[0]) from None


def check_options(name: str, agent: MultiStepAgent) -> None:
    """Check that the options of one agent suit its tools and its model. Raises `StartError`."""
    held = {*vars(agent)}
    for kind in type(agent).__mro__:
        if not kind.__module__.startswith(("smolagents", "builtins")):
            held |= {key for key, value in vars(kind).items() if not (callable(value) or isinstance(value, _METHODS))}
    for attribute in sorted(held):
        if option := nearest(attribute):
            advice = "" if option == attribute else ", or rename the attribute if you use it yourself"
            raise StartError(
                f"the agent {name!r} has an attribute {attribute!r}, and attributes set no options; remove it and "
                f"write smolsessions.options(agent, {option}=…) in the factory{advice}"
            )
    if not set(options_of(agent).unsafe_to_repeat) <= set(agent.tools):
        there = ", ".join(agent.tools)
        raise StartError(
            f"the agent {name!r}: unsafe_to_repeat: names a tool that the agent does not have; it has {there}"
        )
    if schema := options_of(agent).output_schema:
        try:
            check_output_schema(schema, "")
        except InvalidRequestError as error:
            raise StartError(f"the agent {name!r}: output_schema: {error.message}") from None
    for tool in agent.tools.values() if importlib.util.find_spec("torch") is None else ():
        # smolagents has audio as a tensor of torch: the tool would fail after it ran, or at each call.
        kinds = {key: schema.get("type") for key, schema in getattr(tool, "inputs", {}).items()}
        if getattr(tool, "output_type", None) == "audio" or "audio" in kinds.values():
            raise StartError(
                f"the tool {tool.name!r} of agent {name!r} has an input or output_type 'audio', which needs torch in "
                "smolagents; write 'any' for an input, 'object' for what returns smolsessions.Audio(data, media_type)"
            )
    if hidden := disable_client_retries(agent.model):
        log.warning(
            "the model client of agent %r repeats failed calls %d times, as set by its author and unseen by the turn; "
            "remove that setting and set the option model_retries",
            name,
            hidden,
            extra={"action": "model.retries"},
        )
    check_model(name, agent)
    if options_of(agent).prompt_cache:
        for model in with_fallbacks(agent.model):
            cache_prompts(model)


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
    except ValidationError as error:
        raise StartError(mistakes_in(error, ("options", name, "memory_policy"))[0]) from None
    except InvalidRequestError as error:
        raise StartError(f"the agent {name!r}: {error}") from None
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


def tool_names(agent: MultiStepAgent) -> frozenset[str]:
    """Return the names of everything that an agent can call, and the agents below it."""
    names: set[str] = set()
    for each in with_managed(agent):
        names |= {tool.name for tool in (*each.tools.values(), *each.managed_agents.values())}  # rules see these names
        if code_runs_in(each):
            names.add("python_interpreter")
    return frozenset(names)


def cannot_wait(agent: MultiStepAgent) -> str | None:
    """Return why no turn of an agent can wait for a person, or None. Its code must be able to run again."""
    for each in with_managed(agent):
        place = code_runs_in(each)
        if place in {"thread", "remote"}:
            where = "the thread of its turn (executor='thread')" if place == "thread" else "a remote executor"
            return f"its code runs in {where}, so a turn cannot wait for a person; let it run in a child process"
    return None


def asks(agent: MultiStepAgent) -> bool:
    """Return whether an agent or one below it has an option that lets turns wait for a person."""
    return any(options_of(each).approve or options_of(each).ask_user for each in with_managed(agent))


def approved_tools(agent: MultiStepAgent) -> tuple[str, ...] | None:
    """Return the tools that the options of an agent and those below it name. None: a function decides on calls."""
    rules = [options_of(each).approve for each in with_managed(agent)]
    if any(callable(rule) for rule in rules):
        return None
    return tuple(dict.fromkeys(name for rule in rules for name in rule))


def check_approvals(name: str, agent: MultiStepAgent, *, takes_caller: bool) -> None:
    """Check the options `approve` and `ask_user` of an agent and those below it. Raises `StartError`."""
    for each in with_managed(agent):
        rule, known = options_of(each).approve, tool_names(each)
        if not callable(rule) and not takes_caller and (refused := refused_tools(name, known, rule)):
            there = ", ".join(sorted(known - {"final_answer"})) or "none"
            key = "approve" if each is agent else f"approve of {each.name}"
            raise StartError(
                f"the agent {name!r}: {key}: entry {refused[0] + 1} names no tool that the agent can call; it can "
                f"call {there}"
            )
    if asks(agent) and (sentence := cannot_wait(agent)):
        raise StartError(f"the agent {name!r} has the option approve or ask_user, and {sentence}")


def refused_tools(name: str, known: Collection[str], tools: Collection[str]) -> tuple[int, str] | None:
    """Return place and sentence of the first pattern that names no tool of an agent."""
    for place, pattern in enumerate(tools):
        if not any(matches(tool, [pattern]) for tool in known):
            return place, f"{pattern!r} names no tool of the agent {name!r}"
    return None
