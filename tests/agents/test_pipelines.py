"""The pages of docs/pipelines: each turn that they show is played again, and compared with the page."""

import re
from collections.abc import Iterator

import pytest
from smolagents.agents import EMPTY_PROMPT_TEMPLATES

from tests.support.pipeline_pages import FOLDER, block, block_of, joined, marks, player, shown_key
from tests.support.pipelines import SCENARIOS, Played, Player, Scenario

_ARROW = re.compile(r"^    (\w)-?->>(\w): (\S+) ?(\S*)", re.MULTILINE)


@pytest.fixture(scope="module")
def playing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with player(tmp_path_factory.mktemp("pipelines")) as running:
        yield running


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: f"{scenario.page}: {scenario.title}")
def test_a_page_shows_a_turn_as_it_is_played(playing: Player, scenario: Scenario) -> None:
    shown = block_of((FOLDER / f"{scenario.page}.md").read_text("utf-8"), scenario.title)
    played = playing.play(scenario)
    if not scenario.brief:
        assert drawn(shown) == happened(played)
        assert len(re.findall(r"^    S->>M: prompt", shown, re.MULTILINE)) == len(played.requests)
        stored = re.findall(r"^\| (task|planning|action) ", shown, re.MULTILINE)
        assert stored == [step["type"] for step in played.steps]
    assert len(played.requests) == len(scenario.answers)
    assert shown == block(played), "run `make refresh`"


def test_every_turn_of_the_pages_is_played() -> None:
    marked = {
        (file.stem, title)
        for file in FOLDER.glob("*.md")
        for title in re.findall(r"^<!-- played: (.*) -->$", file.read_text("utf-8"), re.MULTILINE)
    }
    assert marked == {(scenario.page, scenario.title) for scenario in SCENARIOS}
    diagrams = sum(file.read_text("utf-8").count("```mermaid") for file in FOLDER.glob("*.md"))
    assert diagrams == sum(not scenario.brief for scenario in SCENARIOS), f"a diagram lies outside of {marks('TITLE')}"


def test_the_overview_has_all_keys_of_prompt_templates() -> None:
    keys = {
        f"{name}.{part}" if isinstance(value, dict) else name
        for name, value in EMPTY_PROMPT_TEMPLATES.items()
        for part in (value if isinstance(value, dict) else [name])
    }
    rows = (FOLDER / "README.md").read_text("utf-8").partition("key in `prompt_templates` |")[2].partition("\n\n")[0]
    assert (
        set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)?)`", "".join(row.split("|")[3] for row in rows.splitlines()[2:])))
        == keys
    )


def drawn(shown: str) -> list[tuple[str, str]]:
    """Read the events, writes and runs of tools out of a diagram, in order."""
    kinds = {"SC": "event", "SD": "write", "ST": "tool"}
    found = []
    for source, target, first, second in _ARROW.findall(shown):
        kind = kinds.get(source + target)
        if kind == "write":
            found.append((first, second if first == "journal" else ""))
        elif kind == "tool" and first != "the":
            found.append((kind, first.partition("(")[0]))
        elif kind == "event":
            found.append((kind, first))
    return found


def happened(played: Played) -> list[tuple[str, str]]:
    """Return the events as the client read them, among the writes as the store made them."""
    assert [entry.name for entry in played.entries if entry.kind == "event"] == [each["type"] for each in played.events]
    first = {event["seq"] for event in joined(played.events)}
    found = []
    events = iter(played.events)
    for kind, name in played.entries:
        if kind == "event" and next(events)["seq"] not in first:
            continue
        key = shown_key(name) if kind == "journal" else "" if kind in {"queue", "step", "commit"} else name
        found.append(("commit," if kind == "commit" else kind, key))
    return found
