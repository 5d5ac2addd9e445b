"""JSON forms: values that JSON keeps exactly, and texts that are cut with a mark."""

import datetime as dt
import decimal
import zoneinfo
from typing import Any

import pandas as pd
import PIL.Image
import pytest

from smolsessions.agents.values.json_forms import json_flaw, json_form, label_of, shown_form, truncate_json, truncated
from tests.support.json_values import nested

KEPT: dict[str, tuple[Any, Any, str]] = {
    "bits": ((1 << 8192) - 1, 1 << 8192, "is a number of too many digits"),
    "levels": (nested(100), nested(101), "lies more than 100 levels deep"),
    "parts": ([0] * 1_000_000, [0] * 1_000_001, "has too many parts"),
    "finite": ([1e308], [float("inf")], "is no number of JSON"),
    "key": ({"1": 1}, {1: 1}, "has a key that is no text"),
    "text": ("\U0001f600", "\ud83d", "is a text with half a character"),
    "kind": ([1], (1,), "is a tuple, which JSON does not have"),
}


@pytest.mark.parametrize("what", KEPT)
def test_json_keeps_a_value_exactly_up_to_its_bounds(what: str) -> None:
    kept, changed, reason = KEPT[what]
    assert json_flaw(kept) is None
    flaw = json_flaw(changed)
    assert flaw
    assert flaw.startswith(reason)


def test_a_flaw_has_its_place_and_a_tree_holds_nothing_twice() -> None:
    flaw = json_flaw({"a/b": [0, {"~": {1}}]})
    assert flaw
    assert flaw.endswith("(at /a~1b/1/~0 in it)")
    inner: list[Any] = []
    assert json_flaw([inner, inner]) is None
    assert json_flaw([inner, inner], is_tree=True)
    assert json_flaw(["abc", "d"], max_chars=4) is None
    assert json_flaw(["abc", "de"], max_chars=4)


def test_a_cut_text_says_how_long_it_was() -> None:
    cut = "x" * 2000 + "… (2001 characters)"
    assert truncated("x" * 2000) == "x" * 2000
    assert truncated("x" * 2001) == cut
    assert truncate_json({"a": ["x" * 2001]}) == {"a": [cut]}
    assert truncate_json([0] * 100) == [0] * 100
    assert truncate_json([0] * 101) == str([0] * 101)
    assert label_of(ValueError("x" * 2001)) == f"[builtins.ValueError] {cut}"


def test_a_long_text_becomes_a_label() -> None:
    assert json_form("x" * 1_000_000) == "x" * 1_000_000
    assert json_form("x" * 1_000_001) == "[builtins.str] " + "x" * 2000 + "… (1000001 characters)"


UNSHOWN: dict[str, Any] = {
    "a data frame of ten rows": pd.DataFrame({"n": range(10)}),
    "a data frame of 200 rows": {"rows": [pd.DataFrame({"n": range(200)})]},
    "digits": [10**2500],
    "a zone": dt.timezone(dt.timedelta(hours=1), "x" * 2001),
    "a function": {"f": len},
    "a key": {10**2500: 1},
    "a long text": "x" * 1_000_001,
}


@pytest.mark.parametrize("what", UNSHOWN)
def test_a_label_of_no_image_or_file_shows_a_person_less_than_the_value(what: str) -> None:
    assert not shown_form(UNSHOWN[what])[0]


def test_a_time_shows_its_zone_by_name() -> None:
    noon = dt.datetime(2026, 11, 28, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    assert json_form([noon]) == ["2026-11-28T12:00:00+01:00[Europe/Berlin]"]
    assert shown_form(noon)[0]


def test_plain_values_and_media_are_shown_whole() -> None:
    day = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    assert shown_form([1, 1.5, None, "é", b"\x00", day, {1: (2,)}, decimal.Decimal("0.1"), {3}]) == (True, 0)
    assert shown_form([PIL.Image.new("RGB", (1, 1))]) == (True, 1)
