"""The docs: a reader can follow them, generated parts are current, and the mutations name tests that exist."""

import json
import re
from collections.abc import Container
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import BaseModel

from smolsessions.agent_options import OptionValues
from smolsessions.agents.transfer.step_models import STEP_MODELS, StepIn
from smolsessions.agents.transfer.variables import VariablesIn
from smolsessions.core.documents import ConversationDocument
from tests.support.doc_pages import PORTS, SERVER, Block, Reader, blocks_of
from tests.support.llm import LLM
from tests.support.service import ROOT
from tests.topology.node import free_port
from tools import reference
from tools.mutants import read_mutations


def test_the_generated_parts_of_pages_are_current() -> None:
    for page, name, text in reference.parts():
        assert page.read_text("utf-8") == reference.fill(page, name, text), "run `make refresh`"


def test_the_table_of_options_names_all() -> None:
    options = (reference.DOCS / "factories.md").read_text("utf-8").partition("\n## Options\n")[2].partition("\n## ")[0]
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
    return {n: bool(mark) for names, mark in re.findall(pattern, part, re.MULTILINE) for n in re.findall(r"\w+", names)}


def required_of(model: type[BaseModel], base: Container[str]) -> dict[str, bool]:
    return {name: field.is_required() for name, field in model.model_fields.items() if name not in base}


def test_each_mutation_fits_the_code_and_names_tests_that_exist() -> None:
    for mutation in read_mutations([]):
        assert mutation.old != mutation.new, mutation.name
        for test in mutation.tests:
            module, _, name = test.partition("::")
            text = (ROOT / module).read_text()
            assert f"def {name.partition('[')[0]}(" in text if name else text, (mutation.name, test)


OTHER = {"site", "node_modules", "pipelines"}  # built, of others, and played by tests/agents/test_pipelines.py
FOLDERS = [each for each in ROOT.iterdir() if each.is_dir() and (each.name == ".github" or each.name[0] != ".")]
PAGES = [
    page
    for page in [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in sorted(folder.rglob("*.md")))]
    if OTHER.isdisjoint(page.relative_to(ROOT).parts)
]
FILE = re.compile(r"\b(?:tests|docs)/\S+\.(?:py|md)\b")
DEMO = "SMOLSESSIONS_AGENTS=demo=smolsessions.agents.demo.agents:make_demo SMOLSESSIONS_DEMO_AGENTS=0"
TUTORIAL = tuple(sorted((ROOT / "docs" / "tutorial").glob("[0-9]*.md")))  # each page goes on where the last one ended
OTHERS = [(page,) for page in PAGES if page not in TUTORIAL and any(block.is_run_here for block in blocks_of(page))]


@pytest.mark.timeout(180)  # most of it is the start of services
@pytest.mark.parametrize("pages", [TUTORIAL, *OTHERS], ids=lambda pages: str(pages[0].relative_to(ROOT)))
def test_a_reader_can_follow(pages: tuple[Path, ...], llm: LLM, tmp_path: Path) -> None:
    blocks = [block for page in pages for block in blocks_of(page) if block.is_run_here]
    ports = dict(zip(PORTS, (str(free_port()) for _ in PORTS), strict=True))
    with Reader(tmp_path / "reader", ports, llm.base_url) as reader:
        if _needs_a_service(blocks):
            reader.serve(DEMO, "serve", blocks[0])
        for block in blocks:
            for part in json.loads(block.mark("model") or "[]"):
                llm.answer(part) if isinstance(part, str) else llm.call(tuple(part))
            reader.follow(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    for block in blocks_of(page):
        assert block.has_reader or not block.is_run_here, f"{block}: no test can run it, and no mark says why"
        if (reason := block.mark("no-run")) is not None:
            assert len(reason.split()) > 1, block
            assert [name for name in FILE.findall(reason) if not (ROOT / name).exists()] == [], block
        if test := block.mark("run by"):
            assert page.name in (ROOT / test).read_text(), f"{block}: {test} does not name the page"


MODEL = "gpt-6.1-terra"  # the one hosted model that pages and the template name; its vendor says when it ends
OF_VENDORS = re.compile(r"\b(?:gpt|chatgpt|claude|gemini|grok|command|mistral|nova)-[a-z0-9][\w.-]*|\bo\d-\w+")
OF_GNU = re.compile(r"base64 -w|sed -i |\bsed\b.*/[a-z]*[IM][a-z]*p?'|readlink -f|date -d|grep -P|xargs -r|stat -c")
TEMPLATES = sorted((ROOT / "app" / "smolsessions" / "cli" / "template").iterdir())


@pytest.mark.parametrize("page", [*PAGES, *TEMPLATES], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_followed_as_it_is_shown(page: Path) -> None:
    """No hidden command, no command of GNU alone, no model that may have ended, no link with a file for its caption."""
    text = page.read_text("utf-8")
    assert re.findall(r"<!--\s*sh\b", text) == [], "show the commands"
    assert OF_GNU.findall(text) == []
    assert set(OF_VENDORS.findall(text)) <= {MODEL}
    assert re.findall(r"\[[^\]]*\.(?:md|py)`?\]\([^)]*\)", text) == []


def test_each_page_makes_conversations_of_its_own() -> None:
    """Someone who follows a second page on the same service meets no 409."""
    made = re.compile(
        r"""localhost:8000/conversations -H [^\n]*(?:\\\n)?[^\n]*"id": "([\w-]+)"|/imports\?id=([\w-]+)"""
    )
    ids = [one or other for page in PAGES for one, other in made.findall(page.read_text("utf-8"))]
    assert len(ids) > 8
    assert [each for each in ids if ids.count(each) > 1] == []


def test_the_docs_stay_short() -> None:
    words = [len(page.read_text("utf-8").split()) for page in reference.DOCS.rglob("*.md")]
    assert len(words) <= 48
    assert sum(words) <= 42_000


def _needs_a_service(blocks: list[Block]) -> bool:
    """Return whether a page asks a service that it does not start."""
    asks = any(f":{PORTS[0]}" in block.text for block in blocks)
    return asks and not any(SERVER.match(line) for block in blocks for line in block.text.splitlines())
