"""Tools that agents.toml names by import strings."""

from typing import Any

from smolagents import Tool

from tests.support.tools import tool

SETUPS: list[str] = []
"""Names of the tools that were set up, once for each time."""


class _Own(Tool):
    description = "A tool."
    inputs: dict[str, Any] = {}  # noqa: RUF012 - smolagents' own form
    output_type = "string"


class Shared(_Own):
    name = "shared"

    def setup(self) -> None:
        SETUPS.append(self.name)
        self.is_initialized = True

    def forward(self) -> str:
        return "shared"


class Counting(_Own):
    """It says that it holds state, by `get_state` and `set_state`."""

    name = "counting"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def setup(self) -> None:
        SETUPS.append(self.name)
        self.is_initialized = True

    def get_state(self) -> int:
        return self.count

    def set_state(self, state: int) -> None:
        self.count = state

    def forward(self) -> str:
        self.count += 1
        return f"call {self.count}"


class Async(_Own):
    name = "later"

    async def forward(self) -> str:  # type: ignore[misc]
        yield "for no one"


class Fails(_Own):
    name = "fails"

    def setup(self) -> None:
        raise OSError("no disk")

    def forward(self) -> str:
        return ""


@tool
def instance(text: str) -> str:
    """Repeat a text."""
    return text


def make_shared() -> Shared:
    return Shared()  # type: ignore[no-untyped-call]


def make_number() -> int:
    return 7


counting = Counting()
