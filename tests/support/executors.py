"""Executors of model-written code with a few tools, as a code process has them."""

import re
from importlib.util import find_spec

from smolagents.local_python_executor import InterpreterError, LocalPythonExecutor

from smolsessions.agents.sandbox.variables import use_state

IMPORTS = ["abc", "copy", "dataclasses", "decimal", "enum", "fractions", "functools", "io", "operator", "threading"]
LIBRARIES = [name for name in ("numpy", "pandas") if find_spec(name)]
MAX_BYTES = 4_000_000


def echo(text: object) -> str:
    return f"<{text}>"


def final_answer(answer: object) -> object:
    return answer


class Fetch:
    def __init__(self) -> None:
        self.secret = "sk-secret"

    def __call__(self, text: object) -> str:
        return f"{text} with {len(self.secret)}"


def new_executor() -> LocalPythonExecutor:
    imports = [*IMPORTS, *LIBRARIES, "PIL.*", "socket", "collections.abc"]
    executor = LocalPythonExecutor(imports, timeout_seconds=None)
    use_state(executor)
    executor.send_tools({"echo": echo, "fetch": Fetch(), "final_answer": final_answer})  # type: ignore[dict-item]
    return executor


def said(executor: LocalPythonExecutor, code: str) -> str:
    """Return the output and answer of a block of code, or its error."""
    try:
        result = executor(code)
    except InterpreterError as error:
        return comparable(f"{executor.state['_print_outputs']}{error}")
    return comparable(f"{result.logs}{result.output if result.is_final_answer else ''}")


def comparable(text: str) -> str:
    """Return a text without addresses, and with the members of sets in one order: a set may keep them in any."""
    text = re.sub("0x[0-9a-f]+", "0x", text)
    return re.sub(r"\{([^{}:]*)\}", lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", text)
