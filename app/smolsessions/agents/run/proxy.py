"""Base of the proxies that stand in for an agent's parts."""

from __future__ import annotations

from typing import Any


class Proxy:
    """Stands in for a real object, whose class it reports. Outside a turn it only forwards calls."""

    __slots__ = ("_node", "_real")
    _real: Any
    _node: Any

    def __init__(self, real: Any, node: Any) -> None:
        object.__setattr__(self, "_real", real)
        object.__setattr__(self, "_node", node)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_real"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._real)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return vars(self._real)


def unproxied(thing: Any) -> Any:
    """Return the real object behind a proxy, and any other object unchanged."""
    return object.__getattribute__(thing, "_real") if issubclass(type(thing), Proxy) else thing
