"""Encoding of values: data comes back unchanged, hostile classes do not run, and hostile bytes are errors."""

import collections
import datetime as dt
import enum
import functools
import io
import json
import math
import re
import signal
import struct
import sys
import time
import tracemalloc
import uuid
import zoneinfo
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from http import HTTPStatus
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, Self

import PIL.Image
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smolagents.agent_types import AgentAudio, AgentImage, AgentText

from smolsessions.agents.values import CodecError, dumps, dumps_lossy, loads
from smolsessions.agents.values.images import image_to_bytes
from tests.support import hostile
from tests.support.encoded_values import ONE, PRIME, blob, count, long, many, number, pairs, parts, text
from tests.support.json_values import nested
from tests.support.tiers import repeated
from tests.support.waiting import run_program

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
MODES = "1 L LA P RGB RGBA I;16".split()
OTHER_MODES = "La PA RGBa RGBX CMYK YCbCr LAB HSV I F I;16L I;16B I;16N".split()


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any = 0


@dataclass(slots=True)
class Slim:
    x: Any
    y: Any = field(default_factory=list)


class Old:
    def __init__(self, name: str) -> None:
        self.name = name

    def shout(self) -> str:
        return self.name.upper()

    @functools.cached_property
    def length(self) -> int:
        return len(self.name)


class City(pydantic.BaseModel):
    name: str
    founded: dt.date | None = None
    _secret: int = pydantic.PrivateAttr(default=1)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: Any
    right: Any


class Wary:
    """Object on which every operation leaves a mark."""

    __slots__ = ("__dict__", "slot")
    __init__ = __setattr__ = __setstate__ = __getstate__ = hostile.marking("wary")
    __reduce__ = __reduce_ex__ = __eq__ = __hash__ = hostile.marking("wary")
    __getattribute__ = __getattr__ = __repr__ = __str__ = hostile.marking("wary")
    __class__ = property(hostile.marking("wary"))
    computed = property(hostile.marking("wary"), hostile.marking("wary"))

    def __new__(cls) -> Self:
        hostile.MARKS.append("new")
        raise RuntimeError


CARRIED = (Point, Slim, Old, City, Colour, Rights, Wary)


@pytest.fixture(autouse=True)
def _armed() -> Iterator[None]:
    hostile.MARKS.clear()
    hostile.ArmedKey.armed = True
    yield
    hostile.ArmedKey.armed = False


def crossed(value: Any) -> Any:
    return loads(dumps(value, CARRIED), CARRIED)


def same(one: Any, other: Any) -> bool:
    """Compare values and their types: 1 differs from True, and NaN equals NaN."""
    if type(one) is not type(other):
        return False
    spread = _spread(one)
    if spread is None:
        return bool(one == other)
    other_spread = _spread(other) or []
    return len(spread) == len(other_spread) and all(map(same, spread, other_spread))


def _spread(value: Any) -> list[Any] | None:
    """Return the parts of a value, for a comparison that is stricter than `==`."""
    if isinstance(value, float):
        return ["nan" if math.isnan(value) else struct.pack("d", value)]
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (Point, Slim)):
        return [value.x, value.y]
    if isinstance(value, (dt.datetime, dt.time)):
        return [value.isoformat(), value.fold, str(value.tzinfo)]
    return [str(value)] if isinstance(value, Decimal) else [*value] if isinstance(value, (list, tuple, deque)) else None


ZONES = st.sampled_from([None, dt.UTC, BERLIN, dt.timezone(dt.timedelta(hours=-3, minutes=7), "there")])
FOLDS = st.integers(0, 1)
KEYS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(60, 14_000).map(lambda bits: -1 << bits),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(st.characters(codec=None)),
    st.binary(),
    st.dates(),
    st.times(),
    st.builds(lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold), st.datetimes(), ZONES, FOLDS),
    st.builds(lambda clock, fold: clock.replace(tzinfo=dt.UTC, fold=fold), st.times(), FOLDS),
    st.timedeltas(),
    ZONES,
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
    st.builds(range, st.integers(), st.integers(), st.integers(1, 9)),
    st.sampled_from([Path("a/b"), PurePosixPath("/a"), PureWindowsPath("c:\\a"), *Colour, Rights.READ, sys.maxsize]),
)
HASHABLE = KEYS | st.tuples(KEYS, KEYS) | st.frozensets(KEYS, max_size=3) | st.builds(Point, KEYS)
LEAVES = HASHABLE | st.floats() | st.complex_numbers() | st.just(Decimal("NaN")) | st.binary().map(bytearray)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.builds(deque, st.lists(inner, max_size=3), st.none() | st.integers(3, 9)),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
        st.builds(Point, inner, inner),
        st.builds(Slim, inner, inner),
    ),
    max_leaves=6,
)


@repeated(6)
@given(VALUES)
@settings(max_examples=40, deadline=None)
def test_a_value_comes_back_as_it_was(_time: int, value: Any) -> None:
    data = dumps(value, CARRIED)
    assert same(loads(data, CARRIED), value)
    assert dumps(loads(data, CARRIED), CARRIED) == data


@repeated(4)
@given(st.dictionaries(HASHABLE, LEAVES, max_size=5))
@settings(max_examples=30, deadline=None)
def test_the_order_of_keys_is_kept_and_is_not_in_the_canonical_bytes(_time: int, value: dict[Any, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert dumps(value, CARRIED, in_order=True) == dumps(turned, CARRIED, in_order=True)
    assert same(loads(dumps(value, CARRIED, in_order=True), CARRIED), value) or len(value) > 1
    assert list(crossed(turned)) == list(turned)


def test_different_values_have_different_canonical_bytes() -> None:
    values = [0, False, 0.0, -0.0, "", b"", [], (), {}, set(), frozenset(), None, "0", [[]], [0], {0}, {"a": 1, "b": 2}]
    values += [{"a": 2, "b": 1}, {1: (2, 3)}, {1: 2, 3: None}, 1 << 64, 1 << 65]
    assert len({dumps(value, in_order=True) for value in values}) == len(values)


@pytest.mark.parametrize("mode", [*MODES, *OTHER_MODES])
def test_an_image_comes_back_pixel_by_pixel_or_converted(mode: str) -> None:
    image = PIL.Image.new(mode, (13, 5))
    band = bytes(range(65)) * (len(image.tobytes()) // 65 + 1)
    if mode in MODES:
        image = PIL.Image.frombytes(mode, (13, 5), band[: len(image.tobytes())])
    if mode == "P":
        image.putpalette(bytes(range(256)) * 3)
    copy = crossed([image])[0]
    assert type(copy) is PIL.Image.Image
    assert (copy.mode in MODES, copy.size) == (True, image.size)
    stored = PIL.Image.open(io.BytesIO(image_to_bytes(image)))
    assert (stored.mode, stored.size) == (copy.mode, copy.size)
    assert stored.tobytes() == copy.tobytes()
    if mode in MODES:
        assert (copy.mode, copy.tobytes()) == (image.mode, image.tobytes())
        assert stored.getpalette() == image.getpalette()


@pytest.mark.parametrize("mode", ["I;16B", "I;16L"])
def test_an_image_of_16_bits_keeps_them(mode: str) -> None:
    assert crossed([PIL.Image.new("I", (3, 2), 40_000).convert(mode)])[0].getpixel((0, 0)) == 40_000


class Row(list[int]):
    """List that its author made a key."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.mark.parametrize("value", [{Row([1]): 2}, {(1, Row([1]))}])
def test_a_key_whose_copy_could_be_none_has_a_json_form_alone(value: Any) -> None:
    with pytest.raises(CodecError, match="it is a key or in a set, which a list cannot be"):
        dumps(value)
    assert loads(dumps_lossy(value))


class Watching:
    def __get__(self, made: object, kind: type) -> int:
        return 0

    def __set__(self, made: object, item: object) -> None:
        hostile.MARKS.append("descriptor")


@dataclass
class Watched:
    x: int = Watching()  # type: ignore[assignment]  # a descriptor in the place of a default


def test_a_field_that_is_a_descriptor_runs_no_code() -> None:
    hostile.MARKS.clear()
    assert vars(loads(parts("instance", text(f"{__name__}.Watched"), pairs(x=ONE)), (Watched,))) == {"x": 1}
    assert hostile.MARKS == []


def test_a_value_that_smolagents_wraps_is_encoded_without_the_wrapper() -> None:
    image = PIL.Image.new("RGB", (2, 2), "red")
    assert same(crossed([AgentText("x"), Pair(1, [2])]), ["x", (1, [2])])
    assert crossed(AgentImage(image)).tobytes() == image.tobytes()
    assert type(crossed(str.__new__(AgentAudio, "sound.wav"))) is str


def test_collections_patterns_and_enums_of_python_keep_their_class() -> None:
    ordered = OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    assert list(crossed(ordered).items()) == [("b", 2), ("a", 1)]
    for value in (
        *(ordered, collections.Counter("aab"), defaultdict(list, a=[1]), defaultdict(None, a=1)),
        *(re.compile("a+", re.IGNORECASE), re.compile(b"a"), HTTPStatus.OK, signal.SIGTERM, re.RegexFlag.ASCII),
    ):
        copy = crossed([value])[0]
        assert (type(copy), copy) == (type(value), value)
    assert crossed({HTTPStatus.OK: 1}) == {HTTPStatus.OK: 1}
    assert crossed(defaultdict(list))["new"] == []
    assert same(crossed(defaultdict(lambda: 1, a=2)), {"a": 2})
    assert same(crossed(re.RegexFlag.ASCII | re.RegexFlag.DOTALL), int(re.ASCII | re.DOTALL))


def test_instances_of_carried_classes_come_back_without_their_methods() -> None:
    old = Old("me")
    assert old.length == 2
    old.extra = [1]  # type: ignore[attr-defined]
    copy = crossed(old)
    assert (copy.name, copy.extra, copy.shout(), "length" in vars(copy)) == ("me", [1], "ME", False)
    city = City(name="Rome", founded=dt.date(753, 4, 21))
    city._secret = 5  # noqa: SLF001
    assert crossed(city) == city
    assert crossed({Point(1): Colour.RED}) == {Point(1): Colour.RED}
    assert crossed(Slim(1)) == Slim(1)


def test_no_method_of_a_declared_class_runs_in_the_decoder() -> None:
    copy = loads(carried(Wary, slot=ONE, inner=many(b"l", number(2))), CARRIED)
    assert type(copy) is Wary
    assert Wary.__dict__["slot"].__get__(copy) == 1
    assert Wary.__dict__["__dict__"].__get__(copy) == {"inner": [2]}
    assert hostile.MARKS == []


def test_a_carried_class_that_is_a_kind_of_builtin_is_refused_by_name() -> None:
    with pytest.raises(CodecError, match=r"test_values\.Pair cannot be handed over; a declared class must not be"):
        dumps(Pair(1, 2), (Pair,))
    with pytest.raises(CodecError, match="no single member"):
        dumps(Rights.READ | Rights.WRITE, (Rights,))


@pytest.mark.parametrize("name", hostile.REFUSED_VALUES)
def test_a_value_without_an_encoding_is_refused_and_has_a_label(name: str) -> None:
    value, began = hostile.REFUSED_VALUES[name], time.process_time()
    with pytest.raises(CodecError, match="cannot be handed over") as caught:
        dumps({"x": [1, 2, 3, value]})
    assert len(str(caught.value)) < 10_000
    data = dumps_lossy([value])
    json.dumps(loads(data)[0])
    assert len(data) < 20_000_000
    assert time.process_time() - began < 40


@pytest.mark.parametrize("name", hostile.ACCEPTED_VALUES)
def test_an_instance_of_a_subclass_is_encoded_as_its_base(name: str) -> None:
    value, wanted = hostile.ACCEPTED_VALUES[name]
    assert same(loads(dumps([value])), [wanted])


def test_an_error_names_the_path_and_the_kind() -> None:
    with pytest.raises(CodecError, match=r"^a list_iterator at \['x'\]\[3\] cannot be handed over; only data can"):
        dumps({"x": [1, 2, 3, iter([])]})
    with pytest.raises(CodecError, match=r"^a _io\.StringIO at \[1\] in a set or as a key cannot"):
        dumps((1, {io.StringIO(): 1}))
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(CodecError, match=r"^a list at \['a'\]\[0\] cannot be handed over; it holds itself"):
        dumps({"a": circle})
    with pytest.raises(CodecError, match=r"^a function cannot be handed over"):
        dumps(lambda: 1)


def test_the_size_has_a_limit() -> None:
    assert loads(dumps("x" * 995, max_bytes=1000), max_bytes=1000) == "x" * 995
    for value in ("x" * 996, ["x" * 600] * 2):
        with pytest.raises(CodecError, match="1,000 bytes"):
            dumps(value, max_bytes=1000)
        with pytest.raises(CodecError, match="1,000 bytes"):
            loads(dumps(value), max_bytes=1000)


LIMITS: dict[str, tuple[Any, Any]] = {
    "levels": (nested(100), nested(101)),
    "parts": ([None] * 1_000_000, [None] * 1_000_001),
    "bits": ((1 << 14_280) - 1, 1 << 14_280),
    "digits": (Decimal("1" * 10_000), Decimal("1" * 10_001)),
    "exponent": (Decimal("1e999999"), Decimal("1e1000000")),
}


@pytest.mark.parametrize("what", LIMITS)
def test_a_value_of_the_largest_size_crosses_and_a_larger_one_does_not(what: str) -> None:
    most, beyond = LIMITS[what]
    assert crossed(most) == most
    with pytest.raises(CodecError):
        dumps(beyond)


def test_fifty_keys_may_have_one_hash() -> None:
    assert len(loads(many(b"Z", *[long(n * PRIME) for n in range(50)]))) == 50


def test_a_label_that_fails_itself_names_the_class() -> None:
    label = loads(dumps_lossy(hostile.REFUSED_VALUES["an instance of a lying metaclass"]))
    assert label == "[builtins.object] without text: RuntimeError"


def carried(kind: type, **items: bytes) -> bytes:
    return parts("instance", text(f"{kind.__module__}.{kind.__qualname__}"), pairs(**items))


def picture(mode: str, width: int, height: int, pixels: bytes, *more: bytes) -> bytes:
    return parts("image", text(mode), number(width), number(height), blob(pixels), *(more or [b"N"] * 3))


HOSTILE_BYTES: dict[str, bytes] = {
    "nothing": b"",
    "an unknown tag": b"?",
    "two values": b"NN",
    "a text longer than the message": b"s" + count(4_000_000_000) + b"x",
    "a text that is no UTF-8": b"s" + count(1) + b"\xff",
    "a number of too many digits": b"I" + count(1_000_000) + b"\1" * 1_000_000,
    "a list longer than the message": many(b"l", ONE, claimed=2),
    "a list of a billion": many(b"l", claimed=4_000_000_000),
    "a list of too many parts": many(b"l", *[b"N"] * 1_000_001),
    "many deques": many(b"l", *[parts("deque", many(b"l"), b"N")] * 44_000),
    "101 levels of lists": many(b"l", claimed=1) * 101 + b"N",
    "a million levels of lists": many(b"l", claimed=1) * 1_000_000 + b"N",
    "a million levels of parts": (b"P\4\1zone") * 1_000_000 + b"N",
    "a list in a set": many(b"Z", many(b"l")),
    "a list in a tuple in a set": many(b"z", many(b"t", many(b"l"))),
    "a dict as a key": many(b"d", many(b"d"), claimed=1) + b"N",
    "an image as a key": many(b"d", picture("L", 1, 1, b"x"), claimed=1) + b"N",
    "a key that is there twice": many(b"d", text("a"), b"N", text("a"), b"N", claimed=2),
    "two keys that are equal": many(b"d", number(1), b"N", b"T", b"N", claimed=2),
    "an item that is there twice": many(b"Z", ONE, ONE),
    "too many keys of one hash": many(b"Z", *[long(n * PRIME) for n in range(51)]),
    "tuples of one hash": many(b"Z", *[many(b"t", long(n * PRIME)) for n in range(1000)]),
    "an unknown kind": parts("os.system", text("true")),
    "a kind whose name is no text": b"P\1\0\xff",
    "a kind of too many parts": parts("date", ONE, ONE, ONE, ONE),
    "a date of texts": parts("date", text("2020"), ONE, ONE),
    "a month 13": parts("date", number(2020), number(13), ONE),
    "a year of 4,000 digits": parts("date", long(1 << 14_000), ONE, ONE),
    "a fold 2": parts("time", ONE, ONE, ONE, ONE, number(2), b"N"),
    "a moment of bytes": parts("datetime", blob(bytes(10)), *[ONE] * 7, b"N"),
    "a moment in a zone that is a text": parts("datetime", number(2020), *[ONE] * 7, text("UTC")),
    "a time span past all": parts("timedelta", long(1 << 100), ONE, ONE),
    "an offset of two days": parts("timezone", parts("timedelta", number(2), number(0), number(0)), b"N"),
    "a zone that is no name": parts("zone", text("../../etc/passwd")),
    "a zone that is a folder": parts("zone", text("Europe")),
    "a decimal that is none": parts("decimal", text("x")),
    "a decimal past all": parts("decimal", text("1e999999999")),
    "a signalling decimal as a key": many(b"Z", parts("decimal", text("sNaN"))),
    "a fraction by zero": parts("fraction", ONE, number(0)),
    "an id of 129 bits": parts("uuid", long(1 << 128)),
    "a range of no steps": parts("range", ONE, ONE, number(0)),
    "a deque shorter than nothing": parts("deque", many(b"l"), number(-1)),
    "a path that is bytes": parts("path", blob(b"x"), b"T", b"T"),
    "an image of an unknown mode": picture("XYZ", 1, 1, b"x"),
    "an image with too few pixels": picture("RGB", 2, 2, bytes(11)),
    "an image with too many pixels": picture("RGB", 2, 2, bytes(13)),
    "an image of bits that is a bomb": picture("1", 8_000, 8_000, bytes(8_000_000)),
    "an image wider than all": picture("L", 1 << 40, 0, b""),
    "an image whose palette is too long": picture("P", 1, 1, b"x", text("RGB"), blob(bytes(10_000)), b"N"),
    "an image whose palette is no palette": picture("P", 1, 1, b"x", text("XYZ"), blob(b"abc"), b"N"),
    "a class that is not carried": parts("instance", text("builtins.object"), pairs()),
    "a class whose name is no text": parts("instance", ONE, pairs()),
    "fields that are no dict": parts("instance", text("tests.values.test_values.Point"), many(b"l")),
    "fields that have no name": parts("instance", text("tests.values.test_values.Old"), many(b"d", ONE + ONE)),
    "a field that is missing": carried(Point, y=ONE),
    "a slot that is not there": carried(Slim, x=ONE, y=ONE, z=ONE),
    "a field in place of a method": carried(Old, name=text("x"), shout=text("y")),
    "half a pattern": parts("pattern", text("("), number(0)),
    "a long pattern": parts("pattern", text("a" * 1001), number(0)),
    "an enum of the environment": parts("enum", text("os"), text("environ"), text("HOME")),
    "an unknown member of an enum": parts("enum", text("http"), text("HTTPStatus"), text("NO")),
    "an enum of builtins": parts("enum", text("http"), text("__builtins__"), text("eval")),
    "a default of eval": parts("default dict", text("eval"), pairs()),
    "a scalar of a million fields": parts("scalar", text("i," * 1_000_000 + "i"), blob(bytes(4_000_004))),
    "a field in place of a property": carried(Wary, computed=ONE),
    "a field in place of what is computed": carried(Old, name=text("x"), length=ONE),
    "a field in place of the class": carried(Old, __class__=text("x")),
    "an enum as an instance": carried(Colour, _name_=text("RED"), _value_=text("x")),
    "an unknown member": parts("member", text("tests.values.test_values.Colour"), text("GREEN")),
    "a member that is an attribute": parts("member", text("tests.values.test_values.Colour"), text("__class__")),
}


@pytest.mark.parametrize("name", HOSTILE_BYTES)
def test_hostile_bytes_are_an_error_soon_and_in_little_memory(name: str) -> None:
    data = HOSTILE_BYTES[name]
    began = time.process_time()
    with pytest.raises(CodecError):
        loads(data, CARRIED)
    assert time.process_time() - began < 20
    assert hostile.MARKS == []


GREEDY = {
    "sets": (many(b"Z", b"N"), 4),
    "dicts": (many(b"d", text("") + b"N", claimed=1), 3),
    "deques": (parts("deque", many(b"l"), b"N"), 23),
    "lists": (many(b"l"), 1),
    "byte arrays": (b"B" + count(0), 2),
    "instances": (carried(Old), 13),
    "images": (picture("L", 0, 0, b""), 38),
    "dates": (parts("timedelta", ONE, ONE, ONE), 14),
}


@pytest.mark.parametrize("name", GREEDY)
def test_the_largest_message_needs_bounded_memory(name: str) -> None:
    node, nodes = GREEDY[name]
    part = 50  # the data is a fiftieth of the largest message, because tracing memory is slow
    data = many(b"l", *[node] * (1_000_000 // nodes // part))
    tracemalloc.start()
    assert loads(data, CARRIED)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak * part < 300 << 20


def _read(data: bytes) -> Any:
    try:
        return loads(data, CARRIED)
    except CodecError as error:
        return error


RICH = {
    "all": [None, True, -1, 1 << 99, 1.5, 2j, "x\ud800\0é", b"b"],
    "more": [bytearray(b"a"), (1, [2]), {3}, frozenset("a"), range(3)],
    "times": [dt.datetime(2020, 1, 1, tzinfo=BERLIN), dt.date(2020, 1, 1), dt.time(1, tzinfo=dt.UTC), dt.timedelta(1)],
    "numbers": [Decimal("1.5"), Fraction(1, 3), uuid.UUID(int=3), [1.5] * 10, [7] * 10],
    ("a", 1): [Path("x"), deque([1], 3), PIL.Image.new("P", (2, 2)), Point(1, 2), Slim(1), Old("x"), Colour.RED],
}


def test_a_message_cut_short_anywhere_is_an_error() -> None:
    data = dumps(RICH, CARRIED)
    for end in range(len(data)):
        with pytest.raises(CodecError):
            loads(data[:end], CARRIED)


@repeated(8)
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_message_with_changed_bytes_is_read_or_an_error(_time: int, source: st.DataObject) -> None:
    data = bytearray(dumps(RICH, CARRIED))
    for _ in range(source.draw(st.integers(1, 4))):
        data[source.draw(st.integers(0, len(data) - 1))] = source.draw(st.integers(0, 255))
    value = _read(bytes(data))
    if not isinstance(value, CodecError):
        dumps(value, CARRIED)
    assert hostile.MARKS == []


def test_neither_numpy_nor_pandas_is_imported_for_other_values() -> None:
    use = "from smolsessions.agents.values import *; loads(dumps([1]))"
    code = f"import sys; {use}; print({{'numpy', 'pandas'}} & {{*sys.modules}})"
    assert run_program([sys.executable, "-c", code], check=True).stdout == "set()\n"
