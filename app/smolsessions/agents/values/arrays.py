"""Arrays of numpy in numpy's own file format, without pickles, and frames of pandas as columns of them.

An index's frequency and a frame's `attrs` are not encoded.
"""

from __future__ import annotations

import functools
import importlib
import io
import math
import re
import sys
from collections.abc import Callable
from typing import Any

from smolsessions.agents.values.parts import MAX_BYTES, MAX_NODES, Composite, check_keys, joined

_NONE = type(None)
_ANY: tuple[type, ...] = ()
_STR, _BYTES = (str,), (bytes,)


class _Library:
    """Library that is imported for its first value."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


np, pd = _Library("numpy"), _Library("pandas")
_SIMPLE_DTYPE = re.compile(r"[<>|=][a-zA-Z]\d{0,8}(\[\d{0,9}[a-zA-Z]{1,2}\])?")


def splitter_of(kind: type) -> Callable[[Any], Composite] | None:
    """Return the function that splits values of exactly this class of numpy or pandas, or None."""
    library = kind.__module__.partition(".")[0]
    if library not in {"numpy", "pandas"} or library not in sys.modules:
        return None
    return (_numpy_splitters if library == "numpy" else _pandas_splitters)().get(kind)


@functools.cache
def _numpy_splitters() -> dict[type, Callable[[Any], Composite]]:
    def split_array(array: Any) -> Composite:
        _check(array.dtype, array.shape)
        file = io.BytesIO()
        np.save(file, np.asarray(array, order="C"), allow_pickle=False)
        return Composite("array", (file.getvalue(),))

    def split_scalar(scalar: Any) -> Composite:
        _check(scalar.dtype, ())
        return Composite("scalar", (scalar.dtype.str, scalar.tobytes()))

    texts = {np.str_, np.bytes_}  # as the str and bytes that they are
    scalars = dict.fromkeys({*np.sctypeDict.values()} - texts, split_scalar)
    return {**scalars, np.ndarray: split_array, np.memmap: split_array}


def _check(dtype: Any, shape: tuple[int, ...]) -> None:
    if dtype.kind not in "biufcSUmM" or dtype.char in "gG":  # the bytes of long doubles differ between machines
        raise ValueError(f"arrays of dtype {dtype!s:.40} are not handed over; its tolist() may be")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > MAX_BYTES or (not size and max(shape, default=0) > MAX_NODES):
        raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")


@joined("array", _BYTES)
def _array(data: bytes) -> Any:
    """Read a file of numpy's format. `numpy.load` would reserve memory before it checks the size."""
    read, file = np.lib.format, io.BytesIO(data)
    if read.read_magic(file) != (1, 0):
        raise ValueError("an array of another version of the format")
    shape, _, dtype = read.read_array_header_1_0(file)
    return _of_bytes(dtype, shape, file.read())


def _of_bytes(dtype: Any, shape: tuple[int, ...], data: bytes) -> Any:
    _check(dtype, shape)
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError("an array whose shape is not that of its bytes")
    if dtype.kind == "b" and max(data, default=0) > 1:
        raise ValueError("truths that are neither")
    if dtype.kind == "U" and data:
        points = np.frombuffer(data, dtype.byteorder.replace("|", "=") + "u4")
        if points.max() > sys.maxunicode:
            raise ValueError("characters that do not exist")
    return np.ndarray(shape, dtype, bytearray(data))


@joined("scalar", _STR, _BYTES)
def _scalar(dtype: str, data: bytes) -> Any:
    if not _SIMPLE_DTYPE.fullmatch(dtype):  # numpy would read a list of any length as a structure
        raise ValueError("a scalar of several fields")
    return _of_bytes(np.dtype(dtype), (1,), data)[0]


@functools.cache
def _pandas_splitters() -> dict[type, Callable[[Any], Composite]]:
    def split_frame(frame: Any) -> Composite:
        columns = [_column(frame.iloc[:, place]) for place in range(frame.shape[1])]
        return Composite("frame", (frame.columns, frame.index, tuple(columns)))

    def split_index(index: Any) -> Composite:
        return Composite("index", (_column(index), index.name))

    return {
        pd.DataFrame: split_frame,
        pd.Series: lambda series: Composite("series", (_column(series), series.index, series.name)),
        pd.RangeIndex: lambda index: Composite("range index", (range(index.start, index.stop, index.step), index.name)),
        **dict.fromkeys((pd.Index, pd.DatetimeIndex, pd.TimedeltaIndex), split_index),
        pd.Timestamp: lambda value: Composite("timestamp", (value.to_datetime64(), value.tzinfo)),
        pd.Timedelta: lambda value: Composite("time span", (value.to_timedelta64(),)),
        type(pd.NaT): lambda _: Composite("missing", ("NaT",)),
        type(pd.NA): lambda _: Composite("missing", ("NA",)),
    }


def _column(column: Any) -> Any:
    """Return the values of a series or an index, as an array of numpy or as parts."""
    dtype, array = column.dtype, column.array
    if type(dtype).__module__.startswith("numpy"):
        return Composite("objects", (column.tolist(),)) if dtype.kind == "O" else column.to_numpy()
    if type(dtype) is pd.CategoricalDtype:
        return Composite("categories", (array.codes, array.categories, array.ordered))
    if type(dtype) is pd.DatetimeTZDtype:
        return Composite("moments", (array.tz_convert("UTC").tz_localize(None).to_numpy(), dtype.tz))
    if type(dtype) is pd.StringDtype:
        texts = [None if missing else text for text, missing in zip(array.tolist(), array.isna().tolist(), strict=True)]
        return Composite("texts", (texts, dtype.storage, dtype.na_value is pd.NA))
    if isinstance(array, (pd.arrays.IntegerArray, pd.arrays.FloatingArray, pd.arrays.BooleanArray)):
        return Composite("masked", (array._data, array._mask))  # noqa: SLF001 - no public way gives the numbers unchanged
    raise ValueError(f"columns of dtype {dtype} are not handed over")


@joined("frame", _ANY, _ANY, (tuple,), weight=1000)
def _frame(columns: Any, index: Any, data: tuple[Any, ...]) -> Any:
    frame = pd.DataFrame({place: _series(column, index, None) for place, column in enumerate(data)}, index=index)
    frame.columns = _checked_index(columns)
    return frame


@joined("series", _ANY, _ANY, _ANY, weight=500)
def _series(data: Any, index: Any, name: Any) -> Any:
    return pd.Series(_checked_data(data), index=_checked_index(index), name=name, copy=False, dtype=data.dtype)


@joined("index", _ANY, _ANY, weight=500)
def _index(data: Any, name: Any) -> Any:
    hash(name)
    if _checked_data(data).dtype.kind == "O":
        check_keys(list(data))
    return pd.Index(data, name=name, dtype=data.dtype)


@joined("range index", (range,), _ANY, weight=200)
def _range_index(numbers: range, name: Any) -> Any:
    hash(name)
    return pd.RangeIndex(numbers, name=name)


def _checked_index(index: Any) -> Any:
    if not isinstance(index, pd.Index):
        raise TypeError("no index")
    return index


def _checked_data(data: Any) -> Any:
    if not isinstance(data, (np.ndarray, pd.api.extensions.ExtensionArray)) or data.ndim != 1:
        raise TypeError("no column")
    return data


@joined("objects", (list,), weight=50)
def _objects(items: list[Any]) -> Any:
    array = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        array[place] = item
    return array


@joined("categories", _ANY, _ANY, (bool,), weight=500)
def _categories(codes: Any, categories: Any, ordered: bool) -> Any:
    return pd.Categorical.from_codes(_checked_data(codes), categories=_checked_index(categories), ordered=ordered)


@joined("moments", _ANY, _ANY, weight=500)
def _moments(times: Any, zone: Any) -> Any:
    return pd.DatetimeIndex(_checked_data(times)).tz_localize("UTC").tz_convert(zone).array


@joined("texts", (list,), _STR, (bool,), weight=200)
def _texts(texts: list[Any], storage: str, marks_na: bool) -> Any:
    if storage not in {"python", "pyarrow"} or any(type(text) not in {str, _NONE} for text in texts):
        raise ValueError("no texts")
    return pd.array(texts, dtype=pd.StringDtype(storage, na_value=pd.NA if marks_na else math.nan))


@joined("masked", _ANY, _ANY, weight=200)
def _masked(data: Any, mask: Any) -> Any:
    array = {"b": pd.arrays.BooleanArray, "f": pd.arrays.FloatingArray}.get(data.dtype.kind, pd.arrays.IntegerArray)
    return array(_checked_data(data), _checked_data(mask))


@joined("timestamp", _ANY, _ANY)
def _timestamp(moment: Any, zone: Any) -> Any:
    if type(moment) is not np.datetime64:
        raise TypeError("no moment")
    stamp = pd.Timestamp(moment)
    return stamp if zone is None else stamp.tz_localize("UTC").tz_convert(zone)


@joined("time span", _ANY)
def _time_span(span: Any) -> Any:
    if type(span) is not np.timedelta64:
        raise TypeError("no span")
    return pd.Timedelta(span)


@joined("missing", _STR)
def _missing(name: str) -> Any:
    return {"NaT": pd.NaT, "NA": pd.NA}[name]
