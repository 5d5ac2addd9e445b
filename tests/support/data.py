"""Files in tests/data: programs, modules and configurations that tests give to the service."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data"


def data(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")
