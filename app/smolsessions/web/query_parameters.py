"""Routes that refuse query parameters which they do not know: a misspelt one would be ignored, unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams

from smolsessions.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

MOST_NAME_CHARS = 50


class StrictRoute(APIRoute):
    """A route that takes the query parameters of its description and no others."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._known = sorted(field.alias for field in self.dependant.query_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises `InvalidRequestError` for an unknown parameter."""
        if scope["query_string"] and scope["method"] in (self.methods or ()):
            for name in QueryParams(scope["query_string"]):
                if name not in self._known:
                    known = ", ".join(self._known) or "none"
                    raise InvalidRequestError.in_parameter(
                        "query", name[:MOST_NAME_CHARS], f"is not known here; the parameters of this path are: {known}"
                    )
        await super().handle(scope, receive, send)
