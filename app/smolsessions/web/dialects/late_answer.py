"""JSON answer that may come late."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from smolsessions.core.errors import ServiceError
from smolsessions.web.http_connection import BREAK_OFF, call_on_disconnect

BLANK_S = 20.0  # between blanks in front of the answer; clients give up after 300 s of silence


class LateAnswer(Response):
    """JSON that may come late: blanks in front of it keep the connection open.

    The turn goes on if the client leaves.
    """

    def __init__(self, work: Coroutine[Any, Any, Response]) -> None:
        super().__init__(media_type="application/json")
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.create_task(self._work)
        listener = asyncio.create_task(call_on_disconnect(receive, task.cancel))
        try:
            if (await asyncio.wait({task}, timeout=BLANK_S))[0]:
                await task.result()(scope, receive, send)
                return
            del self.headers["content-length"]
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while not (await asyncio.wait({task}, timeout=BLANK_S))[0]:
                await send({"type": "http.response.body", "body": b"\n", "more_body": True})
            with suppress(ServiceError):
                if (answer := task.result()).status_code == HTTPStatus.OK:
                    await send({"type": "http.response.body", "body": bytes(answer.body), "more_body": False})
                    return
            scope[BREAK_OFF]()  # clients send the request again, and get the error with its status
        except asyncio.CancelledError:
            if not task.cancelled():  # this request is cancelled, not the task of a client that left
                raise
        finally:
            listener.cancel()
            task.cancel()
