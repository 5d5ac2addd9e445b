"""Reference pages: their generated parts are as the code is, and their tables name all that the code has."""

import re
from collections.abc import Container
from itertools import pairwise

from pydantic import BaseModel

from smolsessions.agents.transfer.step_models import STEP_MODELS, StepIn
from smolsessions.agents.transfer.variables import VariablesIn
from smolsessions.core.documents import ConversationDocument
from smolsessions.options import OptionValues
from tools import reference


def test_the_generated_parts_of_pages_are_current() -> None:
    for page, name, text in reference.parts():
        assert page.read_text("utf-8") == reference.fill(page, name, text), "run `make refresh`"


def test_the_table_of_options_names_all() -> None:
    _, _, options = (reference.DOCS / "factories.md").read_text("utf-8").partition("\n## Options\n")
    assert set(re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE)) == set(OptionValues.__annotations__)


EXPORT = (reference.DOCS / "export.md").read_text("utf-8")
READ_BY_AGENTS = {"steps", "images", "files", "variables"}


def test_the_tables_of_the_export_name_all_members() -> None:
    assert (
        members_in("| member | type |", "\n## Steps").keys()
        == ConversationDocument.model_fields.keys() | READ_BY_AGENTS
    )
    assert members_in("Every step has", "**`task`**") == required_of(StepIn, ())
    assert members_in("| member of an agent |", "A value is in").keys() == VariablesIn.model_fields.keys()


def test_each_type_of_step_in_the_export_names_its_members() -> None:
    parts = [*re.findall(r"\*\*`(\w+)`\*\*", EXPORT), "## Images"]
    assert parts[:-1] == list(STEP_MODELS)
    for word, following in pairwise(parts):
        end = f"**`{following}`**" if following in STEP_MODELS else following
        assert members_in(f"**`{word}`**", end) == required_of(STEP_MODELS[word], StepIn.model_fields), word


def members_in(start: str, end: str) -> dict[str, bool]:
    """Return the members that a part of the page names: those of its table, or of its sentence. True if required."""
    part = EXPORT.partition(start)[2].partition(end)[0]
    pattern = r"^\| ((?:`\w+`(?:, )?)+)( \*\*!\*\*)?" if "\n| `" in part else r"(`\w+`)( \*\*!\*\*)?"
    return {
        name: bool(mark)
        for names, mark in re.findall(pattern, part, re.MULTILINE)
        for name in re.findall(r"\w+", names)
    }


def required_of(model: type[BaseModel], base: Container[str]) -> dict[str, bool]:
    return {name: field.is_required() for name, field in model.model_fields.items() if name not in base}
