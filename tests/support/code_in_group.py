"""Program that runs code as a service does, one block beyond its memory, and prints what became of it."""

import ctypes
import sys
from contextlib import closing

from smolagents.local_python_executor import InterpreterError, LocalPythonExecutor

from smolsessions.agents.sandbox.code_group import settle
from smolsessions.agents.sandbox.fork_client import ForkClient
from smolsessions.agents.sandbox.interpreter import ChildInterpreter
from smolsessions.agents.sandbox.limits import CodeLimits
from smolsessions.agents.sandbox.memory_budget import MemoryBudget

LEAK = "import tests.support.code_in_group as program\nprogram.leak()"


def leak() -> None:
    """Map pages far from each other. Each takes a page table, which no limit of a process counts."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 4]
    for number in range(25_000):
        ctypes.memset(libc.mmap((1 << 36) + (number << 21), 4096, 3, 0x32, -1, 0), 1, 1)


def main() -> None:
    settle()
    with closing(ForkClient([], memory=MemoryBudget(100))) as client:
        turns = []
        for _ in range(2):
            original = LocalPythonExecutor(["*"], timeout_seconds=None)
            turns.append(ChildInterpreter(original, client, CodeLimits(cpu_s=99, wall_s=99), (), lambda: None))
            turns[-1].send_tools({})
        first, second = turns
        first("kept = 'is kept'")
        try:
            said = second(LEAK).logs
        except InterpreterError as error:
            said = str(error)
        sys.stdout.write(f"{said}\nwhat the other turn had {first('print(kept)').logs}\n")


if __name__ == "__main__":
    main()
