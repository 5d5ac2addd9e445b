"""Lists that are read page by page."""

from typing import Any

from tests.support.service import Service


def pages(service: Service, path: str, **query: Any) -> list[list[dict[str, Any]]]:
    """Read all pages of a list."""
    found = []
    while True:
        page = service.get(path, **query)
        assert page.keys() >= {"items", "next_cursor"}
        found.append(page["items"])
        if page["next_cursor"] is None:
            return found
        query["cursor"] = page["next_cursor"]
