"""Programs that a model might write. Their values survive in another process, or are dropped.

A line `=== name` begins a program. The part behind `---` runs in the next process.
"""

from tests.support.data import data


def _pairs(text: str) -> dict[str, tuple[str, str]]:
    return {name: (first, then) for name, code in named(text).items() for first, _, then in [code.partition("---\n")]}


def named(text: str) -> dict[str, str]:
    found = {}
    for part in text.split("=== ")[1:]:
        name, _, code = part.partition("\n")
        found[name] = code
    return found


CARRIED = _pairs(data("carried.txt"))

CARRIED_WITH_PANDAS = _pairs(data("carried_with_pandas.txt"))

HOSTILE = named(data("hostile_programs.txt"))
