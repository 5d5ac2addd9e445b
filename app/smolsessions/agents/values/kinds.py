"""Kinds of values that are made of simpler values: each splits into a name and a tuple of parts, and joins again.

The parts of the other side are joined after a check of their classes. An image is its pixels: the decoder never opens
an image file of the other side.
"""

from __future__ import annotations

import datetime as dt
import enum
import importlib
import os
import re
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

import PIL.Image
from smolagents.agent_types import AgentImage

from smolsessions.agents.values import arrays
from smolsessions.agents.values.classes import class_name
from smolsessions.agents.values.images import png_image
from smolsessions.agents.values.parts import KINDS, MAX_BYTES, Composite, Declared, Kind, joined
from smolsessions.core.attachments import Audio, File

_NONE = type(None)
_ZONES = (_NONE, dt.timezone, zoneinfo.ZoneInfo)
_INT, _STR = (int,), (str,)
_MAX_DIGITS = 10_000
_MAX_COLOURS = 256
_MAX_EXPONENT = 999_999  # as Python's own default: int() of a larger exponent fills the memory
_MAX_PATTERN = 1000  # characters: the other side's expression is compiled here
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")
_PIXEL_BYTES = {"1": 1, "L": 1, "LA": 2, "P": 1, "RGB": 3, "RGBA": 4, "I;16": 2}
"""Bytes of a pixel by mode. A bit is a byte."""
_FACTORIES: dict[str, Any] = {
    kind.__name__: kind for kind in (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)
}
_ENUM_MODULES = frozenset("calendar enum http inspect plistlib pstats re signal socket ssl uuid".split())


def split(value: Any) -> Composite | None:
    """Split a value. Returns None for other classes. Raises ValueError with the reason why it has no parts."""
    kind = type(value)
    if kind.__module__ in _ENUM_MODULES and isinstance(value, enum.Enum):
        is_member = kind.__members__.get(value.name) is value
        return Composite("enum", (kind.__module__, kind.__qualname__, value.name)) if is_member else None
    if take := arrays.splitter_of(kind):
        return take(value)
    known = next((_SPLITTERS[base] for base in kind.__mro__ if base in _SPLITTERS), None)
    parts = known[1](value) if known else None
    return Composite(known[0], parts) if known and parts is not None else None


def join(kind: str, parts: tuple[Any, ...]) -> Any:
    known = kind_of(kind)
    if len(parts) != len(known.parts):
        raise ValueError(f"{kind} of {len(parts)} parts")
    for part, wanted in zip(parts, known.parts, strict=True):
        if wanted and type(part) not in wanted:
            raise ValueError(f"{kind} with a part that is {class_name(type(part))}")
    return known.make(*parts)


def kind_of(kind: str) -> Kind:
    if kind not in KINDS:
        raise ValueError(f"an unknown kind {kind!r:.40}")
    return KINDS[kind]


@joined("decimal", _STR)
def _decimal(text: str) -> Decimal:
    value = Decimal(text) if len(text) <= _MAX_DIGITS else None
    if value is None or (value.is_finite() and abs(value.adjusted()) > _MAX_EXPONENT):
        raise ValueError("it has too many digits")
    return value


@joined("zone", _STR, weight=100)
def _zone(key: str) -> zoneinfo.ZoneInfo:
    if not _ZONE.fullmatch(key):
        raise ValueError("no name of a zone")
    return zoneinfo.ZoneInfo(key)


def _image_parts(image: PIL.Image.Image) -> tuple[Any, ...]:
    raw = image.to_raw() if isinstance(image, AgentImage) else image
    if not isinstance(raw, PIL.Image.Image):
        raise ValueError("it holds no image")  # noqa: TRY004 - a reason
    if raw.width * raw.height > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} pixels")
    image = png_image(raw)
    palette, colours = None, None
    if image.mode == "P" and image.palette:
        palette = "RGBA" if "A" in image.palette.mode else "RGB"
        colours = bytes(image.getpalette(palette) or ())
    clear = image.info.get("transparency")
    clear = clear if type(clear) in {int, bytes, tuple} else None
    pixels = image.convert("L") if image.mode == "1" else image
    return image.mode, image.width, image.height, pixels.tobytes(), palette, colours, clear


@joined("image", _STR, _INT, _INT, (bytes,), (str, _NONE), (bytes, _NONE), (int, bytes, tuple, _NONE), weight=30)
def _image(*parts: Any) -> PIL.Image.Image:
    mode, width, height, pixels, palette, colours, clear = parts
    if mode not in _PIXEL_BYTES or not (0 <= width <= MAX_BYTES and 0 <= height <= MAX_BYTES):
        raise ValueError("no such image")
    if width * height * _PIXEL_BYTES[mode] != len(pixels):
        raise ValueError("an image whose size is not that of its pixels")
    if not pixels:
        image = PIL.Image.new(mode, (width, height))
    elif mode == "1":
        image = PIL.Image.frombytes("L", (width, height), pixels).convert("1", dither=PIL.Image.Dither.NONE)
    else:
        image = PIL.Image.frombytes(mode, (width, height), pixels)
    if palette is not None:
        most = _MAX_COLOURS * len(palette)
        if mode != "P" or palette not in {"RGB", "RGBA"} or len(colours or b"") > most:
            raise ValueError("no such palette")
        image.putpalette(colours or b"", palette)
    if clear is not None:
        image.info["transparency"] = clear
    return image


def _default_parts(value: defaultdict[Any, Any]) -> tuple[Any, ...] | None:
    factory = value.default_factory
    name = next((name for name, kind in _FACTORIES.items() if kind is factory), None)
    return (name, dict(value)) if name or factory is None else None  # it is read as a dict


@joined("default dict", (str, _NONE), (dict,), weight=20)
def _default_dict(factory: str | None, content: dict[Any, Any]) -> defaultdict[Any, Any]:
    return defaultdict(_FACTORIES[factory] if factory else None, content)


@joined("pattern", (str, bytes), _INT, weight=1000)
def _pattern(text: str | bytes, flags: int) -> re.Pattern[Any]:
    if len(text) > _MAX_PATTERN:
        raise ValueError(f"an expression of more than {_MAX_PATTERN:,} characters")
    try:
        return re.compile(text, flags & ~re.DEBUG)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError("no expression") from error


@joined("enum", _STR, _STR, _STR)
def _enum(module: str, name: str, member: str) -> Any:
    found = getattr(importlib.import_module(module), name, None) if module in _ENUM_MODULES else None
    if not isinstance(found, enum.EnumMeta) or member not in found.__members__:
        raise ValueError(f"no member of an enum of the standard library: {name!r:.40}")
    return found[member]


@joined("path", _STR, (bool,), (bool,))
def _path(text: str, windows: bool, concrete: bool) -> PurePath:
    if concrete and windows == (os.name == "nt"):
        return Path(text)
    return PureWindowsPath(text) if windows else PurePosixPath(text)


def _fields(names: str) -> Callable[[Any], tuple[Any, ...]]:
    return lambda value: tuple([getattr(value, name) for name in names.split()])


def _with_clock(kind: Any) -> Callable[..., Any]:
    return lambda *parts: kind(*parts[:-2], fold=parts[-2], tzinfo=parts[-1])


_CLOCK = "hour minute second microsecond fold tzinfo"
_SPLITTERS: dict[type, tuple[str, Callable[[Any], tuple[Any, ...] | None]]] = {
    dt.datetime: ("datetime", _fields(f"year month day {_CLOCK}")),
    dt.date: ("date", _fields("year month day")),
    dt.time: ("time", _fields(_CLOCK)),
    dt.timedelta: ("timedelta", _fields("days seconds microseconds")),
    dt.timezone: ("timezone", lambda value: (*value.__getinitargs__(), None)[:2]),
    zoneinfo.ZoneInfo: ("zone", _fields("key")),
    Decimal: ("decimal", lambda value: (str(_decimal(str(value))),)),
    Fraction: ("fraction", _fields("numerator denominator")),
    uuid.UUID: ("uuid", _fields("int")),
    range: ("range", _fields("start stop step")),
    PurePath: ("path", lambda value: (str(value), isinstance(value, PureWindowsPath), isinstance(value, Path))),
    deque: ("deque", lambda value: (list(value), value.maxlen)),
    Counter: ("counter", lambda value: (dict(value),)),
    OrderedDict: ("ordered dict", lambda value: (dict(value),)),
    defaultdict: ("default dict", _default_parts),
    re.Pattern: ("pattern", lambda value: (_pattern(value.pattern, value.flags).pattern, value.flags)),
    Audio: ("audio", _fields("data media_type name rate")),
    File: ("file", _fields("data media_type name")),
    PIL.Image.Image: ("image", _image_parts),
}
"""Name and function by class. An instance of a subclass is read as the class."""
_FILE = ((bytes,), _STR, _STR)
KINDS |= {
    "date": Kind((_INT,) * 3, dt.date),
    "time": Kind((*(_INT,) * 5, _ZONES), _with_clock(dt.time)),
    "datetime": Kind((*(_INT,) * 8, _ZONES), _with_clock(dt.datetime)),
    "timezone": Kind(((dt.timedelta,), (str, _NONE)), lambda *parts: dt.timezone(*[p for p in parts if p is not None])),
    "timedelta": Kind((_INT,) * 3, dt.timedelta),
    "fraction": Kind((_INT, _INT), Fraction, weight=100),
    "uuid": Kind((_INT,), lambda number: uuid.UUID(int=number)),
    "range": Kind((_INT,) * 3, range),
    "deque": Kind(((list,), (int, _NONE)), deque, weight=20),
    "counter": Kind(((dict,),), Counter, weight=20),
    "ordered dict": Kind(((dict,),), OrderedDict, weight=20),
    "file": Kind(_FILE, File),
    "audio": Kind((*_FILE, (int, _NONE)), Audio),
    "instance": Kind((_STR, (dict,)), Declared),
    "member": Kind((_STR, _STR), Declared),
}
