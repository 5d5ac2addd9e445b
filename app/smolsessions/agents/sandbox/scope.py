"""Names that model-written functions look up: the interpreter's state, its functions, tools and allowed imports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from smolagents.local_python_executor import FinalAnswerException, PrintContainer, check_import_authorized

if TYPE_CHECKING:
    from smolagents.local_python_executor import LocalPythonExecutor

PRINTED, COUNTED = "_print_outputs", "_operations_count"


class Tools(Mapping[str, Any]):
    """The executor's current tools as a code block sees them. `final_answer` ends the block."""

    def __init__(self, executor: LocalPythonExecutor) -> None:
        self._executor = executor
        self._final_answer = partial(_finish, None)
        self._names: tuple[dict[str, Any], dict[int, str]] = {}, {}

    def names_by_id(self) -> dict[int, str]:
        if self._names[0] is not self._bare():
            names = {id(tool): name for name, tool in self._bare().items() if not isinstance(tool, type)}
            self._names = self._bare(), names
        return self._names[1]

    def __getitem__(self, name: str) -> Any:
        tool = self._bare()[name]
        if name != "final_answer":
            return tool
        if self._final_answer.args[0] is not tool:
            self._final_answer = partial(_finish, tool)
        return self._final_answer

    def __contains__(self, name: object) -> bool:
        return name in self._bare()

    def __iter__(self) -> Iterator[str]:
        return iter(self._bare())

    def __len__(self) -> int:
        return len(self._bare())

    def _bare(self) -> dict[str, Any]:
        return self._executor.static_tools or {}


class Scope:
    """Scope of restored functions: that of the live executor, or a scratch one for a trial."""

    def __init__(self, executor: LocalPythonExecutor, *, scratch: bool = False) -> None:
        self.state: dict[str, Any] = {} if scratch else executor.state
        self.functions: dict[str, Any] = {} if scratch else executor.custom_tools
        self.tools = Tools(executor)
        self.imports: list[str] = executor.authorized_imports

    def begin_loading(self) -> dict[str, int]:
        """Discard the prints of functions that run while values load. Returns the counter of their operations."""
        self.state[PRINTED] = PrintContainer()
        operations = self.state[COUNTED] = {"counter": 0}
        return operations

    def evaluation_arguments(self) -> tuple[Any, Any, Any, list[str]]:
        """Return the arguments of smolagents' evaluation after the expression, the state first."""
        return self.state, self.tools, self.functions, self.imports

    def authorizes(self, module: str) -> bool:
        return check_import_authorized(module, self.imports)


def _finish(tool: Any, *args: Any, **kwargs: Any) -> Any:
    raise FinalAnswerException(tool(*args, **kwargs))
