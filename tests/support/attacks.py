"""Attacks on the interpreter: ways to name a hidden thing, to read it, and to pass it on. PYTEST_DONT_REWRITE."""

import types
from itertools import product
from random import Random
from typing import Any

from smolagents.local_python_executor import LocalPythonExecutor, PythonExecutor

from smolsessions.agents.sandbox import guard
from tests.support.data import data

IMPORTS = ["functools", "string"]
BEGIN = data("attacks_begin.txt")
HIDDEN = """
    f.__globals__ f.__closure__ f.__code__ f.__builtins__ f.__class__ g.gi_frame g.gi_code stub.__closure__
    stub.__globals__ int.__subclasses__ type(k).__dict__ k.__dict__ k.method.__func__ k.method.__self__
    error.__traceback__ error.with_traceback random._os random.__builtins__ random._urandom re.enum queue.threading
    statistics.sys collections._sys functools.__loader__ functools.update_wrapper string.Formatter().get_field
    string.Formatter().format collections.UserString('x').format [].append.__self__ take.__wrapped__ print.__globals__
    getattr.__closure__ setattr.__globals__
""".split()
OPERATORS = "+ - * / // % ** & | ^ << >>".split()
REFLECTED = "radd rsub rmul rtruediv rfloordiv rmod rpow rand ror rxor rlshift rrshift".split()
PASSED = data("attacks_passed.txt").splitlines()
READS = [line.replace(r"\n", "\n") for line in data("attacks_reads.txt").splitlines()]
OWNERS = """
    f g k k.method Keeper Name error take stub print getattr setattr int type dict list str object map filter super()
    functools functools.partial functools.reduce functools.lru_cache(f) collections collections.Counter queue
    collections.OrderedDict() collections.UserDict() queue.Queue() queue.Empty() random random.Random random.choice re
    re.compile re.compile('a') statistics.mean statistics.NormalDist string string.Template('$a') string.Formatter
    string.Formatter() itertools itertools.chain [].append {}.get ''.join ''.format
""".split()
ATTRIBUTES = """
    __globals__ __closure__ __code__ __builtins__ __class__ __dict__ __func__ __self__ __wrapped__ __subclasses__
    __mro__ __base__ __bases__ __init__ __getattribute__ __reduce_ex__ __reduce__ __loader__ __spec__ __module__
    __traceback__ __context__ __defaults__ __kwdefaults__ __call__ __get__ __init_subclass__ __set_name__ gi_frame
    gi_code f_globals f_back tb_frame cell_contents obj func args keywords _os _sys threading sys enum mro get_field
    format vformat parse cache_info default_factory gi_yieldfrom
""".split()
WRAPS = data("attacks_wraps.txt").splitlines()
_FORBIDDEN = (types.FrameType, types.CodeType, types.CellType, types.MappingProxyType, PythonExecutor)


def attacks() -> list[str]:
    """Return all blocks of the grammar."""
    found = []
    for hidden in HIDDEN:
        owner, _, name = hidden.rpartition(".")
        found += [read.format(o=owner, a=name) for read in READS]
        for (operator, method), way in product(zip(OPERATORS, REFLECTED, strict=True), PASSED):
            passed = way.format()
            found.append(f"class E:\n    def __{method}__(*a):\n        {passed}\n{owner}.{name} {operator}= E()")
    return found


def wild_attack(random: Random) -> str:
    """Return a block whose hidden name, owner and ways to read and to pass it on are composed at random."""
    owner, _, name = random.choice(HIDDEN).rpartition(".")
    if random.random() < 0.5:
        owner, name = random.choice(OWNERS), random.choice(ATTRIBUTES)
    for _ in range(random.randrange(4)):
        owner = random.choice(WRAPS).format(o=owner, a=random.choice(ATTRIBUTES))
    if random.random() < 0.5:
        return random.choice(READS).format(o=owner, a=name)
    operator, method = random.choice([*zip(OPERATORS, REFLECTED, strict=True)])
    passed = random.choice(PASSED).format()
    return f"class E:\n    def __{method}__(*a):\n        {passed}\nt = {owner}\nt.{name} {operator}= E()"


def reached(blocks: list[str], *, is_guarded: bool = True) -> list[str]:
    """Run blocks in this process. Return those in which native code or a tool got a hidden thing."""
    if is_guarded:
        guard.install()
    executor, found = _Executor(), []
    for block in blocks:
        executor.run(block)
        if executor.got:
            found.append(f"{block}\n-> {executor.got[0]:.100}")
    return found


class _Executor:
    def __init__(self) -> None:
        self.got: list[str] = []
        self._executor = LocalPythonExecutor(IMPORTS, timeout_seconds=None)
        stub = guard.tool_stub("stub", print, {"description": "Does nothing."})
        self._executor.send_tools({"take": self._take, "stub": stub})  # type: ignore[dict-item]  # plain functions

    def run(self, block: str) -> None:
        self.got.clear()
        self._executor.state, self._executor.custom_tools = {"__name__": "__main__"}, {}
        self._executor(BEGIN)
        try:
            self._executor(block)
        except Exception:  # noqa: BLE001 - most are refused
            return

    def _take(self, *things: Any, **named: Any) -> int:
        for thing in (*things, *named.values()):
            inner = thing if type(thing) in {list, tuple} else ()
            self.got += [repr(type(each)) + repr(each) for each in (thing, *inner) if self._is_hidden(each)]
        return 1

    def _is_hidden(self, thing: Any) -> bool:
        kind = type(thing)
        if kind is dict:
            return "__spec__" in thing or "__builtins__" in thing or "eval" in thing
        if kind is str:
            return thing.startswith(("<frame ", "<code ", "<cell ", "(<cell ")) or "'__spec__'" in thing
        if kind is types.ModuleType:
            return thing.__name__ not in self._executor.authorized_imports
        if kind is types.BuiltinFunctionType:
            return thing.__name__ == "__subclasses__" or thing.__module__ in {"posix", "sys"}
        if kind is types.FunctionType:
            return bool(thing.__name__ == "update_wrapper")
        return issubclass(kind, _FORBIDDEN)
