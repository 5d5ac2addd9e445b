"""JSON and code in fragments: any cuts of a text yield the same content, which is that of the whole text."""

import itertools
import json
import time
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jiter import from_json
from smolagents.utils import parse_code_blobs

from smolsessions.agents.run import partial_texts
from smolsessions.agents.run.partial_texts import CodeSplitter, PartialJson

T = TypeVar("T", bound=str)
MALFORMED = (
    '"x" 1, | "x" "y", | "x":, | 1: "x", | , | x, | "x": 1}{ | "x": {[]}, | "x": {1: 2}, | "x": {"y"}, | "x": [}, |'
    ' "x": [1}, | "x": {"y": 1], | "x": {"y": 1,}, | "x": [1,], |'
    ' "x": [1: 2], | "x": 01, | "x": nul, | "x": "\\q", | "x": "\\u00g0", | "x": "\n",'
).split(" | ")
TAGS = [("<code>", "</code>"), ("```python", "```"), ("```", "\n```"), ("aab", "ab")]

chars = st.one_of(
    st.sampled_from('"\\/\b\n\t {}[],:u\x00é😀\ufeff\uffff'),
    st.characters(exclude_categories=["Cs"]),  # the parser takes no escaped half of a character
)
texts = st.text(chars, max_size=12)
keys = st.sampled_from(["a", "answer", "näch\n", "😀"]) | st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
objects = st.dictionaries(keys, values, max_size=5)
layouts = st.fixed_dictionaries({"ensure_ascii": st.booleans(), "indent": st.none() | st.integers(0, 2)})
cuts = st.lists(st.integers(0, 200), max_size=20) | st.just(list(range(200)))
blocks = st.lists(
    st.sampled_from(["<code>", "</code>", "<", "</co", "```", "python", "\n", "a", "b", "x = 1", " "]), max_size=12
).map("".join)
garbage = st.text() | st.lists(
    st.sampled_from(['{"a":', '"a"', "{", "}", "[", "]", ",", ":", '"', "\\", "\\u", "d83d", "1", "-", " ", "\ud83d"])
).map("".join)


def fragments(text: str, places: Iterable[int]) -> list[str]:
    ends = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[start:end] for start, end in itertools.pairwise(ends)]


def pieces(reader: PartialJson, parts: Iterable[str]) -> list[tuple[str, str]]:
    return [piece for part in parts for piece in reader.feed(part)] + reader.end()


def joined(given_pieces: Iterable[tuple[T, str]]) -> list[tuple[T, str]]:
    groups = itertools.groupby(given_pieces, key=lambda piece: piece[0])
    return [(name, "".join(text for _, text in group)) for name, group in groups]


def read(text: str, *wanted: str) -> dict[str, str]:
    return dict(joined(pieces(PartialJson(*wanted), text)))


def split(text: str, tags: tuple[str, str], parts: Iterable[str] | None = None) -> list[tuple[str, str]]:
    reader = CodeSplitter(*tags)
    found = [piece for part in parts or [text] for piece in reader.feed(part)] + reader.end()
    assert all(piece for _, piece in found)
    return [(channel, piece) for channel, piece in joined(found)]


@settings(max_examples=100, deadline=None)
@given(objects, layouts, cuts, st.data())
def test_values_read_as_json(
    data: dict[str, Any], layout: dict[str, Any], places: list[int], draw: st.DataObject
) -> None:
    text = json.dumps(data, **layout)
    wanted = draw.draw(st.lists(st.sampled_from(sorted(data)), unique=True)) if data else ["a"]
    given_pieces = pieces(PartialJson(*wanted), fragments(text, places))
    assert all(piece for _, piece in given_pieces)
    found: dict[str, str] = {}
    for key, piece in given_pieces:
        found[key] = found.get(key, "") + piece
    assert set(found) <= set(wanted)
    for key in set(wanted) & set(data):
        value = data[key]
        if isinstance(value, str):
            assert found.get(key, "") == value  # an empty text yields no piece
        else:
            assert json.loads(found[key]) == value


@settings(max_examples=100, deadline=None)
@given(garbage, cuts)
def test_garbage_raises_nothing(text: str, places: list[int]) -> None:
    pieces(PartialJson("a"), fragments(text, places))


def test_each_fragment_gives_what_it_adds() -> None:
    reader = PartialJson("answer")
    assert reader.feed('{"ans') == []
    assert reader.feed('wer" : "It') == [("answer", "It")]
    assert reader.feed(" is\\") == [("answer", " is")]
    assert reader.feed("n7") == [("answer", "\n7")]
    assert reader.feed("") == []
    assert reader.feed('." , ') == [("answer", ".")]
    assert reader.feed('"other": "no"}') == reader.end() == []


@pytest.mark.parametrize(
    "start",
    ['{"answer": "', '{"x": "', '{"x": [1, "', '{"answer": {"x": "', '{"x": nul, "answer": "', '{"n": 1, "answer": "'],
)
def test_the_work_is_in_proportion_to_the_length(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def counted(data: bytes, **options: Any) -> Any:
        parsed.append(len(data))
        return from_json(data, **options)

    monkeypatch.setattr(partial_texts, "from_json", counted)
    reader = PartialJson("answer", "n")
    reader.feed(start)
    for _ in range(8000):
        reader.feed("word " * 20 + "\\n" * 5)
    assert sum(parsed) < 25 * 8000 * 110


@pytest.mark.parametrize("text", ["", " ", '"a"', '[{"a": "1"}]', 'x{"a": "1"}', '\ufeff{"a": "1"}', '}{"a": "1"}'])
def test_what_is_no_object_gives_nothing(text: str) -> None:
    assert read(text, "a") == {}


@pytest.mark.parametrize("wrong", MALFORMED)
def test_nothing_is_given_after_what_is_malformed(wrong: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(f'{{"a": "1", {wrong} "b": "2"}}')
    assert read(f'{{"a": "1", {wrong} "b": "2"}}', "a", "b") == {"a": "1"}


@pytest.mark.parametrize("last", ['"12"', '"x"', "[2]"])
def test_a_repeated_key_gives_nothing_more_wherever_the_text_is_cut(last: str) -> None:
    text = f'{{"a": "1", "b": "2", "a": {last}}}'
    for place in range(len(text)):
        found = pieces(PartialJson("a", "b"), fragments(text, [place]))
        assert "".join(piece for key, piece in found if key == "a") in {"", "1"}, place


@settings(max_examples=100, deadline=None)
@given(blocks, st.sampled_from(TAGS), cuts)
def test_code_and_thought_do_not_depend_on_the_cuts(text: str, tags: tuple[str, str], places: list[int]) -> None:
    assert split(text, tags, fragments(text, places)) == split(text, tags)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("xy ", min_size=1).filter(str.strip), min_size=1, max_size=4), st.sampled_from(TAGS[:2]))
def test_the_code_is_what_smolagents_runs(codes: list[str], tags: tuple[str, str]) -> None:
    text = "".join(f"Thought {tags[0]}\n{code.strip()}\n{tags[1]} so" for code in codes)
    shown = "".join(piece for channel, piece in split(text, tags) if channel == "code")
    assert shown == parse_code_blobs(text, tags)


def test_code_comes_before_its_block_is_closed() -> None:
    reader = CodeSplitter("<code>", "</code>")
    assert reader.feed("I add <co") == [("thought", "I add ")]
    assert reader.feed("de>") == []
    assert reader.feed("\nx = 1 <") == [("code", "x = 1 ")]
    assert reader.feed(" 2\n") == [("code", "< 2")]
    assert reader.feed("y\n</") == [("code", "\ny")]
    assert reader.feed("code> Then") == [("thought", " Then")]
    assert reader.end() == []


def test_half_a_tag_a_closing_one_that_closes_nothing_and_an_empty_one_are_text() -> None:
    assert split("a <cod", TAGS[0]) == [("thought", "a <cod")]
    assert split("<code>a\n</cod", TAGS[0]) == [("code", "a\n</cod")]
    assert split("```\ntext\n``` so", TAGS[1]) == [("thought", "```\ntext\n``` so")]
    assert split("<code>a", ("", "")) == [("thought", "<code>a")]
    assert split("<code>a", ("<code>", "")) == [("code", "a")]


def test_a_long_text_takes_time_in_proportion_to_its_length() -> None:
    text = "<code>\n" + "a\n" * 25_000 + "</code>" + "<code>b</code>" * 5_000
    for parts, most_s in ((text, 8), (None, 1)):
        began = time.process_time()
        split(text, TAGS[0], parts)
        assert time.process_time() - began < most_s
