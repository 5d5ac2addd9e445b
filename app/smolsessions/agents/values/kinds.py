"""Kinds of values made of simpler values: each splits into a name and a tuple of parts, and joins again.

Parts are read by descriptors of the standard library's class itself. They are joined after a check of their classes.
An image is its pixels: the decoder never opens an image file of the other side.
"""

from __future__ import annotations

import datetime as dt
import enum
import importlib
import os
import re
import sys
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any

import PIL.Image
from smolagents.agent_types import AgentImage

from smolsessions.agents.values import arrays
from smolsessions.agents.values.classes import class_name, is_in, mro_of
from smolsessions.agents.values.images import is_lazy
from smolsessions.agents.values.parts import MAX_BYTES, Declared, Kind, Parts
from smolsessions.core.attachments import Audio, File

_NONE = type(None)
_ZONES = (_NONE, dt.timezone, zoneinfo.ZoneInfo)
_INT, _STR = (int,), (str,)
_MAX_DIGITS = 10_000
_MAX_COLOURS = 256
_MAX_EXPONENT = 999_999  # as Python's own default: int() of a larger exponent fills the memory
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")
_FOUR = dict.fromkeys("RGBA RGBa RGBX CMYK I F".split(), 4)
_THREE = dict.fromkeys("RGB YCbCr LAB HSV".split(), 3)
_TWO = dict.fromkeys("LA La PA I;16 I;16L I;16B I;16N".split(), 2)
_MODES = {
    **_FOUR,
    **_THREE,
    **_TWO,
    "L": 1,
    "P": 1,
    "1": 1,
}  # bytes per pixel; a bit is a byte
_FACTORIES: dict[str, Any] = {
    kind.__name__: kind for kind in (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)
}
_PLAIN_KEYS = frozenset({_NONE, bool, int, float, str, bytes})
_MAX_PATTERN = 1000  # characters: the other side's expression is compiled here
_ENUM_MODULES = frozenset("calendar enum http inspect plistlib pstats re signal socket ssl uuid".split())
_IMAGE_METHODS = frozenset(name for name in dir(PIL.Image.Image) if callable(getattr(PIL.Image.Image, name)))


def parts_of(value: Any) -> Parts | None:
    """Split a value. Returns None for other classes. Raises ValueError with the reason why it has no parts."""
    kind = type(value)
    take = _TAKERS.get(id(kind)) or arrays.taker_of(kind)
    if take is None and (is_lazy(kind) or _is_plugin_image(kind)):
        take = _image_parts
    if take is None:
        take = next((_BASES[id(base)] for base in mro_of(kind) if id(base) in _BASES), None)
    if take is None and class_name(kind).partition(".")[0] in _ENUM_MODULES:
        take = _enum_parts
    return take(value) if take else None


def put_together(kind: str, parts: tuple[Any, ...]) -> Any:
    """Join the parts of a value."""
    known = kind_of(kind)
    if len(parts) != len(known.parts):
        raise ValueError(f"{kind} of {len(parts)} parts")
    for part, wanted in zip(parts, known.parts, strict=True):
        if wanted and not any(type(part) is one for one in wanted):
            raise ValueError(f"{kind} with a part that is {class_name(type(part))}")
    return known.make(*parts)


def kind_of(kind: str) -> Kind:
    known = _KINDS.get(kind) or arrays.kind_of(kind)
    if known is None:
        raise ValueError(f"an unknown kind {kind!r:.40}")
    return known


def _reader(name: str, *fields: tuple[type, str]) -> Callable[[Any], Parts]:
    """Return a function that reads these fields by the descriptors of their classes."""
    descriptors = [vars(owner)[field] for owner, fields_ in fields for field in fields_.split()]
    return lambda value: Parts(name, tuple([descriptor.__get__(value) for descriptor in descriptors]))


def _timezone_parts(value: dt.timezone) -> Parts:
    offset, name = (*value.__getinitargs__(), None)[:2]  # type: ignore[attr-defined]
    return Parts("timezone", (offset, name))


def _decimal_parts(value: Decimal) -> Parts:
    text = Decimal.__str__(value)
    _check_decimal(Decimal(text), text)
    return Parts("decimal", (text,))


def _decimal(text: str) -> Decimal:
    if len(text) > _MAX_DIGITS:
        raise ValueError("it has too many digits")
    value = Decimal(text)
    _check_decimal(value, text)
    return value


def _check_decimal(value: Decimal, text: str) -> None:
    if len(text) > _MAX_DIGITS or (value.is_finite() and abs(value.adjusted()) > _MAX_EXPONENT):
        raise ValueError("it has too many digits")


def _uuid(number: int) -> uuid.UUID:
    return uuid.UUID(int=number)


def _zone(key: str) -> zoneinfo.ZoneInfo:
    if not _ZONE.fullmatch(key):
        raise ValueError("no name of a zone")
    return zoneinfo.ZoneInfo(key)


def _timezone(offset: dt.timedelta, name: str | None) -> dt.timezone:
    return dt.timezone(offset) if name is None else dt.timezone(offset, name)


def _datetime(*parts: Any) -> dt.datetime:
    return dt.datetime(*parts[:-2], fold=parts[-2], tzinfo=parts[-1])  # type: ignore[misc] # not twice


def _time(*parts: Any) -> dt.time:
    return dt.time(*parts[:-2], fold=parts[-2], tzinfo=parts[-1])  # type: ignore[misc] # not twice


def _is_plugin_image(kind: type) -> bool:
    """True for a class of opened image files that Pillow itself defines under this name."""
    module, _, name = class_name(kind).rpartition(".")
    owner = sys.modules.get(module) if module.startswith("PIL.") else None
    return owner is not None and vars(owner).get(name) is kind and is_in(kind, (PIL.Image.Image,))


def _agent_image_parts(value: AgentImage) -> Parts:
    raw = value.to_raw()
    if type(raw) is AgentImage:
        raise ValueError("it holds no image")
    parts = parts_of(raw)
    if parts is None:
        raise ValueError("it holds no image")
    return parts


def _image_parts(image: PIL.Image.Image) -> Parts:
    own = object.__getattribute__(image, "__dict__")
    if not _IMAGE_METHODS.isdisjoint(own):
        raise ValueError("it has methods of its own")
    mode, (width, height) = image.mode, image.size
    if type(mode) is not str or mode not in _MODES:
        raise ValueError("its mode is not known")
    if width * height > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} pixels")
    palette, colours = None, None
    if mode in {"P", "PA"} and image.palette:
        palette = "RGBA" if "A" in image.palette.mode else "RGB"
        colours = bytes(image.getpalette(palette) or ())
    pixels = image.convert("L") if mode == "1" else image
    clear = image.info.get("transparency")
    if type(clear) not in {int, bytes}:
        clear = tuple(clear) if type(clear) is tuple else None
    return Parts("image", (mode, width, height, pixels.tobytes(), palette, colours, clear))


def _image(*parts: Any) -> PIL.Image.Image:
    mode, width, height, pixels, palette, colours, clear = parts
    if mode not in _MODES or not (0 <= width <= MAX_BYTES and 0 <= height <= MAX_BYTES):
        raise ValueError("no such image")
    if width * height * _MODES[mode] != len(pixels):
        raise ValueError("an image whose size is not that of its pixels")
    image = PIL.Image.new(mode, (width, height)) if not pixels else _of_pixels(mode, (width, height), pixels)
    if palette is not None:
        if (
            mode not in {"P", "PA"}
            or palette not in {"RGB", "RGBA"}
            or len(colours or b"") > _MAX_COLOURS * len(palette)
        ):
            raise ValueError("no such palette")
        image.putpalette(colours or b"", palette)
    if clear is not None:
        image.info["transparency"] = clear
    return image


def _of_pixels(mode: str, size: tuple[int, int], pixels: bytes) -> PIL.Image.Image:
    if mode == "1":
        return PIL.Image.frombytes("L", size, pixels).convert("1", dither=PIL.Image.Dither.NONE)
    return PIL.Image.frombytes(mode, size, pixels)


def _has_plain_keys(value: dict[Any, Any]) -> bool:
    """False if a copy might call methods of the keys. Such a dict is read as a plain one."""
    return all(type(key) in _PLAIN_KEYS for key in dict.keys(value))


def _counter_parts(value: Counter[Any]) -> Parts | None:
    return Parts("counter", (dict(dict.items(value)),)) if _has_plain_keys(value) else None


def _ordered_parts(value: OrderedDict[Any, Any]) -> Parts | None:
    return Parts("ordered dict", (dict(OrderedDict.items(value)),)) if _has_plain_keys(value) else None


def _default_parts(value: defaultdict[Any, Any]) -> Parts | None:
    factory = vars(defaultdict)["default_factory"].__get__(value)
    name = next((name for name, kind in _FACTORIES.items() if kind is factory), None)
    is_known = _has_plain_keys(value) and (name or factory is None)
    return Parts("default dict", (name, dict(dict.items(value)))) if is_known else None


def _default_dict(factory: str | None, content: dict[Any, Any]) -> defaultdict[Any, Any]:
    return defaultdict(_FACTORIES[factory] if factory else None, content)


def _pattern_parts(value: re.Pattern[Any]) -> Parts:
    if len(value.pattern) > _MAX_PATTERN:
        raise ValueError(f"an expression of more than {_MAX_PATTERN:,} characters")
    return Parts("pattern", (value.pattern, value.flags))


def _pattern(text: str | bytes, flags: int) -> re.Pattern[Any]:
    if len(text) > _MAX_PATTERN:
        raise ValueError("an expression that is too long")
    try:
        return re.compile(text, flags & ~re.DEBUG)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError("no expression") from error


def _enum_parts(value: Any) -> Parts | None:
    """Return the parts of a member of one of the standard library's enums. None: it is read as its base."""
    kind = type(value)
    if not isinstance(kind, enum.EnumMeta) or kind.__members__.get(value.name) is not value:
        return None
    return Parts("enum", (kind.__module__, kind.__qualname__, value.name))


def _enum(module: str, name: str, member: str) -> Any:
    found = getattr(importlib.import_module(module), name, None) if module in _ENUM_MODULES else None
    if not isinstance(found, enum.EnumMeta) or member not in found.__members__:
        raise ValueError(f"no member of an enum of the standard library: {name!r:.40}")
    return found[member]


def _path_parts(value: Any) -> Parts:
    return Parts("path", (str(value), isinstance(value, PureWindowsPath), isinstance(value, Path)))


def _path(text: str, windows: bool, concrete: bool) -> PurePath:
    if concrete and windows == (os.name == "nt"):
        return Path(text)
    return PureWindowsPath(text) if windows else PurePosixPath(text)


_DATE = (dt.date, "year month day")
_CLOCK = "hour minute second microsecond fold tzinfo"
_OF_FILE = (File, "data media_type name")
_take_datetime = _reader("datetime", _DATE, (dt.datetime, _CLOCK))
# Subclasses of these are read as the class itself.
_BASES: dict[int, Callable[[Any], Parts | None]] = {
    id(dt.datetime): _take_datetime,
    id(dt.date): _reader("date", _DATE),
    id(dt.time): _reader("time", (dt.time, _CLOCK)),
    id(dt.timedelta): _reader("timedelta", (dt.timedelta, "days seconds microseconds")),
    id(Decimal): _decimal_parts,
    id(Fraction): _reader("fraction", (Fraction, "_numerator _denominator")),
    id(File): _reader("file", _OF_FILE),
    id(Audio): _reader("audio", _OF_FILE, (Audio, "rate")),
    id(uuid.UUID): _reader("uuid", (uuid.UUID, "int")),
    id(deque): lambda value: Parts("deque", (list(deque.__iter__(value)), vars(deque)["maxlen"].__get__(value))),
}
_TAKERS: dict[int, Callable[[Any], Parts | None]] = {
    **_BASES,
    id(dt.timezone): _timezone_parts,
    id(zoneinfo.ZoneInfo): _reader("zone", (zoneinfo.ZoneInfo, "key")),
    id(Counter): _counter_parts,
    id(OrderedDict): _ordered_parts,
    id(defaultdict): _default_parts,
    id(re.Pattern): _pattern_parts,
    id(range): _reader("range", (range, "start stop step")),
    **{id(kind): _path_parts for kind in (PosixPath, PurePosixPath, WindowsPath, PureWindowsPath)},
    id(PIL.Image.Image): _image_parts,
    id(AgentImage): _agent_image_parts,
}
_IMAGE = (_STR, _INT, _INT, (bytes,), (str, _NONE), (bytes, _NONE), (int, bytes, tuple, _NONE))
_FILE = ((bytes,), _STR, _STR)
_KINDS: dict[str, Kind] = {
    "date": Kind((_INT,) * 3, dt.date),
    "datetime": Kind((*(_INT,) * 8, _ZONES), _datetime),
    "time": Kind((*(_INT,) * 5, _ZONES), _time),
    "timedelta": Kind((_INT,) * 3, dt.timedelta),
    "timezone": Kind(((dt.timedelta,), (str, _NONE)), _timezone),
    "zone": Kind((_STR,), _zone, weight=100),
    "decimal": Kind((_STR,), _decimal),
    "fraction": Kind((_INT, _INT), Fraction, weight=100),
    "uuid": Kind((_INT,), _uuid),
    "range": Kind((_INT,) * 3, range),
    "path": Kind((_STR, (bool,), (bool,)), _path),
    "deque": Kind(((list,), (int, _NONE)), deque, weight=20, hashable=False),
    "counter": Kind(((dict,),), Counter, weight=20, hashable=False),
    "ordered dict": Kind(((dict,),), OrderedDict, weight=20, hashable=False),
    "default dict": Kind(((str, _NONE), (dict,)), _default_dict, weight=20, hashable=False),
    "pattern": Kind(((str, bytes), _INT), _pattern, weight=1000),
    "enum": Kind((_STR,) * 3, _enum),
    "file": Kind(_FILE, File),
    "audio": Kind((*_FILE, (int, _NONE)), Audio),
    "image": Kind(_IMAGE, _image, weight=30, hashable=False),
    "instance": Kind((_STR, (dict,)), Declared),
    "member": Kind((_STR, _STR), Declared),
}
