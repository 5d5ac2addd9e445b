"""Arrays of numpy and frames of pandas, encoded as blocks of numbers and never as pickles.

Each library is imported for its first value. An index's frequency and a frame's `attrs` are not encoded.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import sys
from collections.abc import Callable
from typing import Any

from smolsessions.agents.values.classes import class_name
from smolsessions.agents.values.parts import MAX_BYTES, MAX_NODES, Kind, Parts, check_keys

_DTYPE = re.compile(r"[<>|]([biufcSU]\d{1,8}|[mM]8(\[\d{0,9}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)")
_LONG = re.compile(r".(f1[26]|c2\d|c3\d)")
_MAX_DIMENSIONS = 32
_ANY: tuple[type, ...] = ()
_STR, _NONE = (str,), type(None)


def taker_of(kind: type) -> Callable[[Any], Parts] | None:
    """Return the function that splits values of exactly this class of numpy or pandas, or None."""
    library = class_name(kind).partition(".")[0]
    if library not in {"numpy", "pandas"} or library not in sys.modules:
        return None
    return (_numpy_takers if library == "numpy" else _pandas_takers)().get(id(kind))


def kind_of(name: str) -> Kind | None:
    """Return the kind of this name, and import its library."""
    library = _KINDS.get(name, ("", None))[0]
    if library:
        importlib.import_module(library)
    return _KINDS[name][1] if library else None


@functools.cache
def _numpy_takers() -> dict[int, Callable[[Any], Parts]]:
    np = importlib.import_module("numpy")
    texts = {np.str_, np.bytes_}  # as the str and bytes that they are
    scalars = {id(kind): _scalar_parts for kind in {*np.sctypeDict.values()} - texts}
    return {**scalars, id(np.ndarray): _array_parts, id(np.memmap): _array_parts}


def _array_parts(array: Any) -> Parts:
    _check(array.dtype.str, array.shape)
    return Parts("array", (array.dtype.str, array.shape, array.tobytes()))


def _scalar_parts(scalar: Any) -> Parts:
    _check(scalar.dtype.str, ())
    return Parts("scalar", (scalar.dtype.str, scalar.tobytes()))


def _check(dtype: str, shape: tuple[int, ...]) -> Any:
    if not _DTYPE.fullmatch(dtype) or _LONG.match(dtype):
        raise ValueError(f"arrays of dtype {dtype!r:.40} are not handed over; its tolist() may be")
    if len(shape) > _MAX_DIMENSIONS or any(type(size) is not int or not 0 <= size <= MAX_BYTES for size in shape):
        raise ValueError("no such shape")
    found = importlib.import_module("numpy").dtype(dtype)
    size = math.prod(shape) * found.itemsize
    if size > MAX_BYTES or (not size and max(shape, default=0) > MAX_NODES):
        raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
    return found


def _array(dtype: str, shape: tuple[Any, ...], data: bytes) -> Any:
    np = importlib.import_module("numpy")
    found = _check(dtype, shape)
    if math.prod(shape) * found.itemsize != len(data):
        raise ValueError("an array whose shape is not that of its bytes")
    if not data:
        return np.empty(shape, found)
    if found.kind == "b" and max(data) > 1:
        raise ValueError("truths that are neither")
    if found.kind == "U":
        points = np.frombuffer(data, found.byteorder.replace("=", "<").replace("|", "<") + "u4")
        if points.max() > sys.maxunicode:
            raise ValueError("characters that do not exist")
    return np.frombuffer(bytearray(data), found).reshape(shape)


def _scalar(dtype: str, data: bytes) -> Any:
    return _array(dtype, (1,), data)[0]


@functools.cache
def _pandas_takers() -> dict[int, Callable[[Any], Parts]]:
    pd = importlib.import_module("pandas")
    takers: dict[type, Callable[[Any], Parts]] = {
        pd.DataFrame: _frame_parts,
        pd.Series: lambda series: Parts("series", (_column_parts(series), series.index, series.name)),
        pd.RangeIndex: lambda index: Parts("range index", (range(index.start, index.stop, index.step), index.name)),
        pd.MultiIndex: _multi_index_parts,
        pd.Timestamp: lambda value: Parts("timestamp", (value.to_datetime64(), value.tzinfo)),
        pd.Timedelta: lambda value: Parts("time span", (value.to_timedelta64(),)),
        type(pd.NaT): lambda _: Parts("missing", ("NaT",)),
        type(pd.NA): lambda _: Parts("missing", ("NA",)),
    }
    for kind in (pd.Index, pd.DatetimeIndex, pd.TimedeltaIndex, pd.CategoricalIndex):
        takers[kind] = lambda index: Parts("index", (_column_parts(index), index.name))
    return {id(kind): taker for kind, taker in takers.items()}


def _frame_parts(frame: Any) -> Parts:
    columns = [_column_parts(frame.iloc[:, place]) for place in range(frame.shape[1])]
    return Parts("frame", (frame.columns, frame.index, tuple(columns)))


def _multi_index_parts(index: Any) -> Parts:
    codes = [codes.astype("<i8") for codes in index.codes]
    return Parts("multi index", (list(index.levels), codes, list(index.names)))


def _column_parts(column: Any) -> Any:
    pd = importlib.import_module("pandas")
    dtype = column.dtype
    if type(dtype).__module__.startswith("numpy"):
        array = column.to_numpy()
        return Parts("objects", (list(array.tolist()),)) if dtype.kind == "O" else array
    array = column.array
    if type(dtype) is pd.CategoricalDtype:
        return Parts("categories", (array.codes, array.categories, array.ordered))
    if type(dtype) is pd.DatetimeTZDtype:
        return Parts(
            "moments",
            (
                column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
                if hasattr(column, "dt")
                else column.tz_convert("UTC").tz_localize(None).to_numpy(),
                dtype.tz,
            ),
        )
    if type(dtype) is pd.StringDtype:
        texts = [None if missing else text for text, missing in zip(array.tolist(), array.isna().tolist(), strict=True)]
        return Parts("texts", (texts, dtype.storage, dtype.na_value is pd.NA))
    if class_name(type(array)).rpartition(".")[2] in {"IntegerArray", "FloatingArray", "BooleanArray"}:
        return Parts("masked", (array._data, array._mask))  # noqa: SLF001 - no public way gives the numbers unchanged
    raise ValueError(f"columns of dtype {dtype} are not handed over")


def _frame(columns: Any, index: Any, data: tuple[Any, ...]) -> Any:
    pd = importlib.import_module("pandas")
    series = {place: _series(column, index, None) for place, column in enumerate(data)}
    frame = pd.DataFrame(series, index=index)
    frame.columns = _index_only(columns)
    return frame


def _series(data: Any, index: Any, name: Any) -> Any:
    pd = importlib.import_module("pandas")
    return pd.Series(
        _data_only(data), index=_index_only(index), name=name, copy=False, dtype=getattr(data, "dtype", None)
    )


def _index(data: Any, name: Any) -> Any:
    pd = importlib.import_module("pandas")
    hash(name)
    if _data_only(data).dtype.kind == "O":
        check_keys(list(data))
    return pd.Index(_data_only(data), name=name, dtype=data.dtype)


def _range_index(numbers: range, name: Any) -> Any:
    hash(name)
    return importlib.import_module("pandas").RangeIndex(numbers, name=name)


def _multi_index(levels: list[Any], codes: list[Any], names: list[Any]) -> Any:
    pd = importlib.import_module("pandas")
    hash(tuple(names))
    return pd.MultiIndex([_index_only(level) for level in levels], [_data_only(code) for code in codes], names=names)


def _index_only(index: Any) -> Any:
    pd = importlib.import_module("pandas")
    if not isinstance(index, pd.Index):
        raise TypeError("no index")
    return index


def _data_only(data: Any) -> Any:
    np, pd = importlib.import_module("numpy"), importlib.import_module("pandas")
    if not isinstance(data, (np.ndarray, pd.api.extensions.ExtensionArray)) or data.ndim != 1:
        raise TypeError("no column")
    return data


def _objects(items: list[Any]) -> Any:
    array = importlib.import_module("numpy").empty(len(items), dtype=object)
    for place, item in enumerate(items):
        array[place] = item
    return array


def _categories(codes: Any, categories: Any, ordered: bool) -> Any:
    pd = importlib.import_module("pandas")
    return pd.Categorical.from_codes(_data_only(codes), categories=_index_only(categories), ordered=ordered)


def _moments(times: Any, zone: Any) -> Any:
    pd = importlib.import_module("pandas")
    return pd.DatetimeIndex(_data_only(times)).tz_localize("UTC").tz_convert(zone).array


def _texts(texts: list[Any], storage: str, marks_na: bool) -> Any:
    pd = importlib.import_module("pandas")
    if storage not in {"python", "pyarrow"} or any(type(text) not in {str, _NONE} for text in texts):
        raise ValueError("no texts")
    dtype = pd.StringDtype(storage, na_value=pd.NA if marks_na else math.nan)
    return pd.array(texts, dtype=dtype)


def _masked(data: Any, mask: Any) -> Any:
    pd = importlib.import_module("pandas")
    array = {"b": pd.arrays.BooleanArray, "f": pd.arrays.FloatingArray}.get(data.dtype.kind, pd.arrays.IntegerArray)
    return array(_data_only(data), _data_only(mask))


def _timestamp(moment: Any, zone: Any) -> Any:
    pd = importlib.import_module("pandas")
    np = importlib.import_module("numpy")
    if type(moment) is not np.datetime64:
        raise TypeError("no moment")
    stamp = pd.Timestamp(moment)
    return stamp if zone is None else stamp.tz_localize("UTC").tz_convert(zone)


def _time_span(span: Any) -> Any:
    np = importlib.import_module("numpy")
    if type(span) is not np.timedelta64:
        raise TypeError("no span")
    return importlib.import_module("pandas").Timedelta(span)


def _missing(name: str) -> Any:
    pd = importlib.import_module("pandas")
    return {"NaT": pd.NaT, "NA": pd.NA}[name]


_KINDS: dict[str, tuple[str, Kind]] = {
    "array": ("numpy", Kind((_STR, (tuple,), (bytes,)), _array, hashable=False)),
    "scalar": ("numpy", Kind((_STR, (bytes,)), _scalar)),
    "frame": ("pandas", Kind((_ANY, _ANY, (tuple,)), _frame, 1000, hashable=False)),
    "series": ("pandas", Kind((_ANY, _ANY, _ANY), _series, 500, hashable=False)),
    "index": ("pandas", Kind((_ANY, _ANY), _index, 500, hashable=False)),
    "range index": ("pandas", Kind(((range,), _ANY), _range_index, 200, hashable=False)),
    "multi index": ("pandas", Kind(((list,), (list,), (list,)), _multi_index, 1000, hashable=False)),
    "objects": ("pandas", Kind(((list,),), _objects, 50, hashable=False)),
    "categories": ("pandas", Kind((_ANY, _ANY, (bool,)), _categories, 500, hashable=False)),
    "moments": ("pandas", Kind((_ANY, _ANY), _moments, 500, hashable=False)),
    "texts": ("pandas", Kind(((list,), _STR, (bool,)), _texts, 200, hashable=False)),
    "masked": ("pandas", Kind((_ANY, _ANY), _masked, 200, hashable=False)),
    "timestamp": ("pandas", Kind((_ANY, _ANY), _timestamp)),
    "time span": ("pandas", Kind((_ANY,), _time_span)),
    "missing": ("pandas", Kind((_STR,), _missing)),
}
