"""Arrays and frames ⇄ bytes: they are restored with their kinds, and forged ones are errors."""

import importlib
import struct
import time
import zoneinfo
from typing import Any

import pytest

from smolsessions.agents.values import CodecError, dumps, dumps_lossy, loads
from tests.support import hostile
from tests.support.encoded_values import ONE, PRIME, blob, long, many, number, parts, text

np = importlib.import_module("numpy")  # without types: its own are stricter than these tests need
pd = importlib.import_module("pandas")
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")

ARRAYS: list[Any] = [
    np.arange(12).reshape(3, 4),
    np.arange(12).reshape(3, 4).T,
    np.arange(10)[::-3],
    np.array(3.5),
    np.zeros((0, 4)),
    np.zeros((2, 0, 3), "<U1"),
    np.array(["ab", "ü\U0001f600", ""]),
    np.array([b"x", b"yz"]),
    np.array([[True], [False]]),
    np.array(["2020-01-01", "NaT"], "M8[D]"),
    np.array([1, -1], "m8[us]"),
    np.array([1, 2], ">i2"),
    np.array([1j, float("nan")]),
    np.array([1.5], "f2"),
    np.array([255], "u1"),
]
SCALARS: list[Any] = [
    *(np.float64(1.5), np.float32("inf"), np.float16(2), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True)),
    *(np.complex64(1j), np.datetime64("2020-01-01"), np.timedelta64(3, "s")),
]
TABLE = pd.DataFrame(
    {
        "number": [1, 2, 3],
        "text": ["x", None, "z\ud800"[:1]],
        "kind": pd.Categorical(["u", "v", None], categories=["v", "u"], ordered=True),
        "day": pd.date_range("2020", periods=3),
        "moment": pd.date_range("2020", periods=3, tz="Europe/Berlin"),
        "span": pd.to_timedelta([1, 2, None], "s"),
        "whole": pd.array([1, None, 3], dtype="Int16"),
        "part": pd.array([1.5, None, 3], dtype="Float64"),
        "truth": pd.array([True, None, False], dtype="boolean"),
        "named": pd.array(["a", None, "c"], dtype="string"),
        "any": pd.Series([1, "x", None], dtype=object),
        "lists": pd.Series([[1, 2], [3], {}], dtype=object),
        3: [1.5, float("nan"), 2],
    }
)
FRAMES = {
    "all kinds": TABLE,
    "turned": TABLE.T,
    "no rows": TABLE.iloc[:0],
    "nothing": pd.DataFrame(),
    "an index alone": pd.DataFrame(index=[1, 2]),
    "two columns of one name": pd.DataFrame([[1, 2.5]], columns=["a", "a"]),
    "a summary": TABLE.describe(),
    **{f"an index of {name}": TABLE.set_index(name) for name in TABLE.columns if name not in {"lists", "kind"}},
}
SERIES = {
    **{f"the column {name}": TABLE[name] for name in TABLE.columns},
    "a named tuple of a name": pd.Series([1], index=["x"], name=("a", 1)),
    "counts": TABLE.groupby("number").size(),
    "nothing": pd.Series([], dtype=object),
}


@pytest.mark.parametrize("array", ARRAYS, ids=repr)
def test_an_array_comes_back_with_its_kind_and_shape_and_can_be_changed(array: Any) -> None:
    copy = loads(dumps([array]))[0]
    assert (copy.dtype, copy.shape, copy.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert copy.flags.writeable
    assert dumps(copy, in_order=True) == dumps(array, in_order=True)


@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
def test_a_scalar_of_numpy_comes_back_as_one(scalar: Any) -> None:
    copy = loads(dumps({scalar: scalar}))
    assert [type(one) for pair in copy.items() for one in pair] == [type(scalar)] * 2
    assert copy == {scalar: scalar}


def test_texts_of_numpy_come_back_as_texts() -> None:
    assert loads(dumps([np.str_("a\0"), np.bytes_(b"")])) == ["a\0", b""]


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_comes_back_with_the_kinds_of_its_columns(name: str) -> None:
    pd.testing.assert_frame_equal(loads(dumps(FRAMES[name])), FRAMES[name], check_freq=False)


@pytest.mark.parametrize("name", SERIES)
def test_a_series_comes_back(name: str) -> None:
    pd.testing.assert_series_equal(loads(dumps(SERIES[name])), SERIES[name], check_freq=False)


@pytest.mark.parametrize("index", [TABLE.index, TABLE.columns, pd.RangeIndex(5, 1, -2, name="n")], ids=str)
def test_an_index_comes_back(index: Any) -> None:
    pd.testing.assert_index_equal(loads(dumps(index)), index, exact=True)


@pytest.mark.parametrize(
    "moment",
    [pd.Timestamp("2020-01-01 01:02:03.123456789"), pd.Timestamp("2020-06-25 02:30", tz=BERLIN), pd.Timedelta(1)],
)
def test_a_moment_of_pandas_comes_back_to_the_nanosecond(moment: Any) -> None:
    copy = loads(dumps(moment))
    assert (type(copy), copy) == (type(moment), moment)
    assert str(copy) == str(moment)


def test_what_is_missing_stays_missing() -> None:
    found = loads(dumps([pd.NaT, pd.NA, None]))
    assert found[0] is pd.NaT
    assert found[1] is pd.NA
    assert found[2] is None


_MARKS = {f"__{name}__": hostile.marking(name) for name in "getattribute iter len reduce".split()}
BadArray: Any = type("BadArray", (np.ndarray,), _MARKS)
BadFrame: Any = type("BadFrame", (pd.DataFrame,), _MARKS)


REFUSED = {
    "objects": np.array([object()]),
    "a masked array": np.ma.array([1]),
    "a long double": np.longdouble(1),
    "an array that is a bomb": np.broadcast_to(np.float64(1), (10**6, 10**6)),
    "an array of a class of its own": np.ndarray.__new__(BadArray, (2,)),
    "a frame of a class of its own": object.__new__(BadFrame),
    "a frame of hostile values": pd.DataFrame({"a": [type("Bad", (), {"__str__": hostile.marking("str")})()]}),
    "periods": pd.Series(pd.period_range("2020", periods=2, freq="M")),
    "an index of two levels": pd.DataFrame(np.ones((2, 2)), columns=pd.MultiIndex.from_product([["a"], [1, 2]])),
    "a kind": np.dtype("f8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arrays_that_are_no_plain_data_are_refused(name: str) -> None:
    with pytest.raises(CodecError, match="cannot be handed over"):
        dumps(REFUSED[name])
    assert "[" in str(loads(dumps_lossy([REFUSED[name]])))


def array(dtype: str, shape: str, data: bytes, *, version: int = 1) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return parts("array", blob(b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(header)) + header + data))


def shape(*sizes: int) -> str:
    return str(sizes)


EIGHT = array("<i8", shape(1), bytes(8))
RANGE = parts("range index", parts("range", number(0), ONE, ONE), b"N")
FORGED = {
    "an array of objects": array("|O", shape(1), bytes(8)),
    "an array of an unknown kind": array("<q8", shape(1), bytes(8)),
    "an array of a billion": array("<f8", shape(10**9), bytes(8)),
    "an array of more than all": array("<f8", shape(*[1 << 20] * 32), bytes(8)),
    "an array of 65 dimensions": array("<f8", shape(*[1] * 65), bytes(8)),
    "texts of nothing, many times": array("<U0", shape(60_000_000), b""),
    "a shape below zero": array("<f8", shape(-1, -1), bytes(8)),
    "a shape of texts": array("<f8", "('1',)", bytes(8)),
    "an array of a later version": array("<i8", shape(1), bytes(8), version=2),
    "a pickle in place of an array": parts("array", blob(b"\x80\x05N.")),
    "an archive in place of an array": parts("array", blob(b"PK\3\4" + bytes(60))),
    "half an array": array("<f8", shape(2), bytes(8)),
    "two arrays": array("<f8", shape(1), bytes(16)),
    "a character that does not exist": array("<U1", shape(1), b"\xff" * 4),
    "a truth that is neither": array("|b1", shape(1), b"\2"),
    "a time of an unknown unit": array("<M8[parsec]", shape(1), bytes(8)),
    "a scalar of two": parts("scalar", text("<f8"), blob(bytes(16))),
    "an array in a set": many(b"Z", EIGHT),
    "a frame of lists": parts("frame", RANGE, RANGE, many(b"t", many(b"l", ONE))),
    "a frame of a table": parts("frame", RANGE, RANGE, many(b"t", array("<i8", shape(1, 1), bytes(8)))),
    "a frame with too many rows": parts("frame", RANGE, RANGE, many(b"t", array("<i8", shape(2), bytes(16)))),
    "a frame whose columns are a list": parts("frame", many(b"l", ONE), RANGE, many(b"t", EIGHT)),
    "a series whose name is a list": parts("series", EIGHT, RANGE, many(b"l")),
    "an index of a list": parts("index", many(b"l", ONE), b"N"),
    "an index of one hash": parts("index", parts("objects", many(b"l", *[long(n * PRIME) for n in range(9999)])), b"N"),
    "categories whose codes are beyond": parts("categories", array("|i1", shape(1), b"\7"), RANGE, b"T"),
    "categories there twice": parts("categories", EIGHT, parts("index", array("<i8", shape(2), bytes(16)), b"N"), b"T"),
    "moments of numbers": parts("moments", parts("objects", many(b"l", text("x"))), text("UTC")),
    "texts of an unknown store": parts("texts", many(b"l"), text("pickle"), b"T"),
    "numbers whose mask is shorter": parts("masked", EIGHT, array("|b1", shape(0), b"")),
    "a timestamp of a text": parts("timestamp", text("2020"), b"N"),
    "something else missing": parts("missing", text("read_pickle")),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_arrays_and_frames_are_errors(name: str) -> None:
    began = time.process_time()
    with pytest.raises(CodecError):
        loads(FORGED[name])
    assert time.process_time() - began < 20


def test_a_frame_cut_short_anywhere_is_an_error() -> None:
    data = dumps(TABLE)
    for end in range(0, len(data), 7):
        with pytest.raises(CodecError):
            loads(data[:end])


def test_many_small_frames_are_too_much() -> None:
    with pytest.raises(CodecError, match="parts"):
        dumps([pd.DataFrame({"a": [1]})] * 1000)
