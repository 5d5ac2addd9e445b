"""Remote executors of model-written code: smolagents' own, made when they are first needed, and their checks."""

from __future__ import annotations

import functools
import inspect
import os
import re
import socket
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

from smolagents import MultiStepAgent, remote_executors
from smolagents.monitoring import AgentLogger
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.tools import get_tools_definition_code

from smolsessions.agent_options import options_of
from smolsessions.agents.imports import require_packages
from smolsessions.agents.models.keys import read_key, remember_keys
from smolsessions.agents.run.async_tools import is_asynchronous
from smolsessions.agents.run.instrumentation import clean_up, with_managed
from smolsessions.agents.run.remote_interpreter import RemoteInterpreter
from smolsessions.agents.values.json_forms import json_form
from smolsessions.core.errors import StartError

__all__ = ["check_remote_executor", "remote_executor"]


@dataclass(frozen=True)
class _Vendor:
    """One of smolagents' executors. `key_variables` are the variables from which its library reads its key."""

    class_name: str
    modules: tuple[str, ...]
    key_option: str = ""
    key_variables: tuple[str, ...] = ()


VENDORS = {
    "docker": _Vendor("DockerExecutor", ("docker", "websocket")),
    "e2b": _Vendor("E2BExecutor", ("e2b_code_interpreter",), "api_key", ("E2B_API_KEY",)),
    "modal": _Vendor("ModalExecutor", ("modal", "websocket"), "", ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")),
    "blaxel": _Vendor("BlaxelExecutor", ("blaxel", "websocket"), "", ("BL_API_KEY", "BL_WORKSPACE")),
}
LIMITATION = (
    "Its code is not run here, but in a remote executor ({kind}): a block of code is recorded as a whole, without "
    "names of the tools that it calls, and its variables end with the executor (dropped_variables names them)."
)
_PACKAGES = {"PIL": "pillow"}


def remote_executor(
    executor: str | Callable[..., RemotePythonExecutor], *, key_env: str | None = None, **options: Any
) -> RemoteInterpreter:
    """Return an executor for `CodeAgent(executor=…)` that starts nothing before the first block of code.

    `executor` is `docker`, `e2b`, `modal` or `blaxel`, or an own subclass of smolagents' `RemotePythonExecutor`.
    `options` are its arguments. `key_env` is the name of the environment variable that holds its key.
    """
    if "allow_pickle" not in inspect.signature(RemotePythonExecutor.__init__).parameters:
        raise StartError(
            "this release of smolagents unpickles what a remote executor sends, so its code could run any code here; "
            "install smolagents 1.25 or later"
        )
    if options.get("allow_pickle"):
        raise StartError(
            "a remote executor has allow_pickle=True, and then code in its sandbox runs any code here, too; remove it"
        )
    shown = {name: value for name, value in options.items() if not re.search("env|secret|token|key", name)}
    described = repr(json_form(shown))
    if not isinstance(executor, str):
        return RemoteInterpreter("remote", functools.partial(_make, lambda: executor, options), described)
    if executor not in VENDORS:
        raise StartError(f"there is no remote executor {executor!r}; use one of {', '.join(VENDORS)}")
    kind = VENDORS[executor]
    require_packages(f"the executor {executor}", kind.modules, executor)
    taken = inspect.signature(getattr(remote_executors, kind.class_name)).parameters
    known = sorted(taken.keys() - {"additional_imports", "logger", "allow_pickle"})
    if "kwargs" not in known and (unknown := sorted(options.keys() - {*known})):  # else the vendor's library takes them
        raise StartError(f"the executor {executor} has no option {unknown[0]!r}; it has {', '.join(known)}")
    if kind.key_option:
        if kind.key_option in options:
            raise StartError(
                f"the executor {executor} has its key among its options; name its variable as key_env instead"
            )
        variable = key_env or kind.key_variables[0]
        if not key_env and not os.environ.get(variable):
            raise StartError(f"the executor {executor} wants a key; set {variable}, or name its variable")
        options[kind.key_option] = read_key(variable, "key_env")
    elif key_env:
        own = " and ".join(kind.key_variables)
        advice = f"set {own}, which its library reads itself, and remove it" if own else "remove it"
        raise StartError(f"the executor {executor} takes no name of a key's variable; {advice}")
    remember_keys(kind.key_variables)
    if executor == "docker":
        # By the label an operator finds containers of a killed process. Port 0 stands for a free one.
        run = {"labels": {"smolsessions": "executor"}, **(options.get("container_run_kwargs") or {})}
        options = {"port": 0, "build_new_image": False, **options, "container_run_kwargs": run}
    make = functools.partial(_make, lambda: getattr(remote_executors, kind.class_name), options)
    return RemoteInterpreter(executor, make, described)


def _make(
    kind: Callable[[], Callable[..., RemotePythonExecutor]],
    options: dict[str, Any],
    imports: list[str],
    logger: AgentLogger,
) -> RemotePythonExecutor:
    """Start a remote executor with the packages of these modules. Those of Python itself need none."""
    tops = dict.fromkeys(name.partition(".")[0] for name in imports if name != "*")
    packages = [_PACKAGES.get(name, name) for name in tops if name not in sys.stdlib_module_names]
    if options.get("port") == 0:  # smolagents' own default is the same for every container
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            options = {**options, "port": probe.getsockname()[1]}
    made = kind()(packages, logger, **options)
    if made.allow_pickle:
        made.cleanup() if hasattr(made, "cleanup") else None
        raise StartError("a remote executor has allow_pickle=True; remove it")
    return made


def refuse_started_executor(name: str, agent: MultiStepAgent) -> None:
    """Refuse an agent that starts its remote executor when it is made. Raises `StartError`."""
    for one in with_managed(agent):
        executor = getattr(one, "python_executor", None)
        if isinstance(executor, RemotePythonExecutor):
            clean_up(agent)
            raise StartError(
                f"the factory of agent {name!r} starts its remote executor at once; write "
                'CodeAgent(executor=smolsessions.remote_executor("docker")), which starts at the first block of code'
            )


def remote_interpreter(agent: MultiStepAgent) -> RemoteInterpreter | None:
    executor = getattr(agent, "python_executor", None)
    return executor if isinstance(executor, RemoteInterpreter) else None


def check_remote_executor(name: str, agent: MultiStepAgent) -> None:
    """Refuse an agent that its remote executor cannot serve. Raises `StartError`."""
    if not remote_interpreter(agent):
        return
    refused = {
        "managed agents, and code in a remote executor cannot call them; remove them": agent.managed_agents,
        "the option scratchpad, whose tools cannot run in a remote executor; remove it": options_of(agent).scratchpad,
        "code_limits, and a remote executor has wall_s alone; remove the others": (
            options_of(agent).code_limits.keys() - {"wall_s"}
        ),
    }
    for reason, is_set in refused.items():
        if is_set:
            raise StartError(f"the agent {name!r} has {reason}, or use the executor 'child'")
    for tool in agent.tools.values():
        problem = "its state would stay there" if callable(getattr(tool, "get_state", None)) else ""
        problem = "it is asynchronous" if is_asynchronous(tool) else problem
        try:
            tool.to_dict()
            compile(get_tools_definition_code({tool.name: copy(tool)}), tool.name, "exec")
        except Exception as error:  # noqa: BLE001 - smolagents raises several kinds
            about = f"it has no source that stands alone ({type(error).__name__}: {error})"
            problem = problem or " ".join(about.split())[:300]
        if problem:
            raise StartError(
                f"the agent {name!r} has the tool {tool.name!r}, which cannot run in a remote executor: {problem}; "
                "write it as a class or function of a module without names from outside, or use the executor 'child'"
            )
