"""Routes that submit, read, stream and cancel turns."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import ValidationError
from starlette.datastructures import QueryParams
from starlette.types import Scope

from smolsessions.core.errors import InvalidRequestError, ShuttingDownError
from smolsessions.core.records import Owner, Page, Ref, Turn, TurnInput, TurnOptions
from smolsessions.core.requests import Answer, Answerer
from smolsessions.core.turns import NewTurn, Turns
from smolsessions.web.body import HeldBody, in_thread_if_large
from smolsessions.web.cursors import number_at
from smolsessions.web.files import read_media
from smolsessions.web.problems import WRITE, headers, responses
from smolsessions.web.routes import common
from smolsessions.web.routes.common import CallerRef, Delivery, Limits, StrictRoute, TurnNumber, answer
from smolsessions.web.sse import EVENT_STREAM, EventStreams, TurnStream, cursor_of
from smolsessions.web.views import effect_view, page_view, turn_view
from smolsessions.wire.requests import AnswerIn, AnswersRequest, TurnRequest
from smolsessions.wire.turns import EffectPage, TurnPage
from smolsessions.wire.turns import Turn as TurnAnswer

log = logging.getLogger(__name__)

LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="The last event that the client has; wins over `after`.")
]
After = Annotated[str | None, Query(description="Number of an event. Only later events are sent.")]
AT = "/conversations/{conversation_id}/turns"
_HEADERS = headers("Location", "Preference-Applied")
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "model": TurnAnswer,
        "description": "The turn at its end, or its events. A failed turn is `status: failed` in a 200.",
        "headers": _HEADERS,
        **EVENT_STREAM,
    },
    202: {
        "model": TurnAnswer,
        "description": "The turn, which is running, queued, or waiting for a person. `Location` is its address.",
        "headers": _HEADERS,
    },
    **responses(None, *WRITE, 429),
}
_PATH = re.compile(r"/(?:turn|conversations/([A-Za-z0-9_-]{1,64})/turns(?:/([1-9][0-9]{0,8})/answers)?)")
_READ = frozenset({b"accept", b"prefer", b"idempotency-key"})
_NOT_STEERED = "reset max_steps deadline_s additional_args files approve client_tools output_schema".split()
_QUERY = {"on_disconnect": ("cancel",), "until": ("waiting",), "include_internal_tools": ("true", "false")}
_WAIT = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9})\"?\s*", re.IGNORECASE)
_QUALITY = re.compile(r"[01](\.\d{0,3})?")


class NewTurns:
    """Accepts new turns, and answers to waiting ones.

    A valid request is answered before FastAPI, which would cost 16 % of a turn's instructions, and hold the body.
    """

    def __init__(self, turns: Turns, limits: Limits, streams: EventStreams) -> None:
        self._turns = turns
        self._limits = limits
        self._streams = streams

    async def answer_at_once(self, scope: Scope, headers: Mapping[bytes, bytes], body: HeldBody) -> Response | None:
        """Return the answer to a valid request, without holding its body, or None: FastAPI answers it."""
        path = _PATH.fullmatch(scope["path"])
        query = dict(QueryParams(scope["query_string"])) if scope["query_string"] else {}
        if (
            not path
            or scope["method"] != "POST"
            or any(value not in _QUERY.get(name, ()) for name, value in query.items())
        ):
            return None
        text = {name: headers[name].decode("latin-1") for name in _READ & headers.keys()}
        key = text.get(b"idempotency-key")
        if key is not None and not common.KEY.fullmatch(key):
            return None
        model: type[AnswersRequest | TurnRequest] = AnswersRequest if path[2] else TurnRequest
        try:
            sent: AnswersRequest | TurnRequest = await in_thread_if_large(model.model_validate_json, body.data)
        except ValidationError:
            return None
        body.free()  # the turn may take long, and FastAPI would hold the body until its end
        internal = query.pop("include_internal_tools", "false") == "true"
        prefer, accept = text.get(b"prefer"), text.get(b"accept")
        delivery = Delivery(prefer, **query, include_internal_tools=internal, accept=accept)  # type: ignore[arg-type]  # checked above
        if isinstance(sent, AnswersRequest):
            return await self.go_on(scope, Ref(Owner(scope["owner"]), path[1]), int(path[2]), sent, delivery)
        if path[1]:
            set_conversation(sent, path[1])
        return await self.answer(scope, sent, delivery, key)

    async def answer(self, scope: Scope, body: TurnRequest, delivery: Delivery, key: str | None) -> Response:
        """Submit a turn, and return it at its end or stream its events."""
        new = await self.prepare(scope, body, key)
        owner, internal = Owner(scope["owner"]), delivery.include_internal_tools
        if wants_stream(delivery.accept):
            return TurnStream(self._streams, await self._turns.submit(owner, new), delivery)
        wait_s, applied = wait_of(delivery.prefer, self._limits.wait_s)
        return turn_answer(await self._turns.submit_and_wait(owner, new, wait_s), applied, internal=internal)

    async def prepare(self, scope: Scope, body: TurnRequest, key: str | None, number: int = 0) -> NewTurn:
        """Return the turn of a request, with its expected number. Checks the bounds that are settings."""
        limits = self._limits
        if scope["app"].state.draining:
            raise ShuttingDownError
        if not body.message.strip():
            raise InvalidRequestError.at("/message", "is empty; say something")
        if len(body.message) > limits.max_message_chars:
            raise InvalidRequestError.at("/message", f"is longer than {limits.max_message_chars} characters")
        if body.max_steps is not None and body.max_steps > limits.max_steps:
            raise InvalidRequestError.at("/max_steps", f"is more than {limits.max_steps}")
        if body.deadline_s is not None and body.deadline_s > limits.max_deadline_s:
            raise InvalidRequestError.at("/deadline_s", f"is more than {limits.max_deadline_s:g}")
        if body.on_busy == "steer" and (more := [name for name in _NOT_STEERED if getattr(body, name)]):
            raise InvalidRequestError.at(f"/{more[0]}", "cannot join a running turn: steer with text and images alone")
        bounds = limits.max_image_pixels, limits.max_file_bytes
        data, images, stored, files = await read_media(body, *bounds, body.additional_args)
        return NewTurn(
            message=body.message,
            conversation_id=body.conversation_id,
            number=number,
            create=body.create,
            agent=body.agent,
            options=TurnOptions(
                body.max_steps,
                body.reset,
                body.deadline_s,
                body.on_busy,
                tuple(body.approve),
                common.tools_of(body.client_tools),
                body.output_schema,
            ),
            turn_input=TurnInput(data, scope["claims"], stored),
            images=images,
            files=files,
            additional_args=body.additional_args,
            metadata=body.metadata,
            idempotency_key=key,
        )

    async def go_on(self, scope: Scope, ref: Ref, number: int, body: AnswersRequest, delivery: Delivery) -> Response:
        """Answer requests of a waiting turn, and return the turn at its end or stream its events."""
        turn, cursor = await self.record_answers(scope, ref.id, number, body)
        if wants_stream(delivery.accept):
            subscription = await self._turns.subscribe(turn.ref, number, cursor)
            if subscription is None:
                return Response(status_code=204)
            return TurnStream(self._streams, subscription, delivery, cursor)
        wait_s, applied = wait_of(delivery.prefer, self._limits.wait_s)
        turn = await self._turns.wait(turn, wait_s)
        return turn_answer(turn, applied, internal=delivery.include_internal_tools)

    async def record_answers(
        self, scope: Scope, conversation_id: str, number: int, body: AnswersRequest
    ) -> tuple[Turn, int]:
        """Record answers to requests of a waiting turn. Return it, and the number of the event before theirs."""
        if scope["app"].state.draining:
            raise ShuttingDownError
        owner = Owner(scope["owner"])
        by, now = Answerer(owner, scope["key"]), time.time()
        answers: list[Answer] = []
        pixels, file_bytes = self._limits.max_image_pixels, self._limits.max_file_bytes  # that all answers share
        for place, sent in enumerate(body.answers):
            at = f"/answers/{place}"
            given = _answer_of(sent, at, by, now)
            images, sizes, files, stored = await read_media(sent, pixels, file_bytes, at=at)
            pixels -= sum(image.width * image.height for image in sizes)
            file_bytes -= sum(file.size_bytes for file in stored)
            answers.append(replace(given, images=images, files=files))
        turn, cursor, new = await self._turns.answer(Ref(owner, conversation_id), number, answers)
        for each in new:
            extra = {"action": "input.answered", "conversation": str(turn.ref), "turn": turn.number}
            log.info("%s: %s by %s (key %s)", each.request_id, each.decision, by.owner, by.key or "none", extra=extra)
        return turn, cursor


def turn_routes(new_turns: NewTurns, turns: Turns, limits: Limits, streams: EventStreams) -> APIRouter:
    """Return the routes of turns. Those of `NewTurns` answer the requests that it leaves to FastAPI."""
    router = APIRouter(tags=["turns"], route_class=StrictRoute)

    @router.post("/turn", responses=_RESPONSES)
    async def create_turn(
        request: Request,
        _owner: common.CallerOwner,
        body: TurnRequest,
        delivery: common.Answered,
        idempotency_key: common.IdempotencyKey = None,
    ) -> Response:
        """Send a message to an agent, and return the turn at its end or stream its events."""
        return await new_turns.answer(request.scope, body, delivery, idempotency_key)

    @router.post(AT, responses=_RESPONSES)
    async def create_conversation_turn(
        request: Request,
        ref: CallerRef,
        body: TurnRequest,
        delivery: common.Answered,
        idempotency_key: common.IdempotencyKey = None,
    ) -> Response:
        """Send a message in this conversation, and return the turn at its end or stream its events."""
        set_conversation(body, ref.id)
        return await create_turn(request, ref.owner, body, delivery, idempotency_key)

    @router.get(AT, responses=responses(TurnPage, 404, 422))
    async def list_turns(
        ref: CallerRef,
        *,
        limit: common.Limit = 20,
        cursor: common.Cursor = None,
        order: common.Ascending = "asc",
        include_internal_tools: common.Internal = False,
    ) -> Response:
        """List turns. A page of large turns may hold fewer than `limit`. `next_cursor` shows whether more follow."""
        of = ("turns", *ref, order)
        page = await turns.store.turns(ref, number_at(cursor, *of), limit, order)
        return answer(page_view(page, partial(turn_view, internal=include_internal_tools), *of))

    @router.get(f"{AT}/{{turn}}", responses=responses(TurnAnswer, 404, 422))
    async def get_turn(ref: CallerRef, number: TurnNumber, include_internal_tools: common.Internal = False) -> Response:
        """Return one turn."""
        turn = await turns.store.turn(ref, number)
        return answer(turn_view(turn, internal=include_internal_tools))

    @router.get(
        f"{AT}/{{turn}}/events",
        response_class=Response,
        responses={
            200: {"description": "The turn's events, live or from its log. See docs/events.md.", **EVENT_STREAM},
            204: {
                "description": "No event follows: the cursor is at the final event, or at the last one before the end "
                "of a wait, with `until=waiting`."
            },
            **responses(None, 404, 422),
        },
    )
    async def get_turn_events(  # noqa: PLR0917 - FastAPI passes them by name
        ref: CallerRef,
        number: TurnNumber,
        last_event_id: LastEventId = None,
        after: After = None,
        include_internal_tools: common.Internal = False,
        on_disconnect: common.OnDisconnect = None,
        until: common.Until = None,
    ) -> Response:
        """Stream a turn's events, from its beginning or from a cursor."""
        cursor = cursor_of(last_event_id, after)
        subscription = await turns.subscribe(ref, number, cursor, until_waiting=until == "waiting")
        if subscription is None:
            return Response(status_code=204)
        delivery = Delivery(None, on_disconnect, until, include_internal_tools)
        return TurnStream(streams, subscription, delivery, cursor)

    @router.post(
        f"{AT}/{{turn}}/cancel",
        responses={
            200: {"model": TurnAnswer, "description": "The turn, which is over.", "headers": _HEADERS},
            202: {"model": TurnAnswer, "description": "The stop is requested.", "headers": _HEADERS},
            **responses(None, 404, 422),
        },
    )
    async def cancel_turn(
        ref: CallerRef,
        number: TurnNumber,
        prefer: common.Prefer = None,
        include_internal_tools: common.Internal = False,
    ) -> Response:
        """Stop a turn at its next model call, piece of text or tool call. Finished steps are kept."""
        wait_s, applied = wait_of(prefer, limits.wait_s) if prefer else (0.0, None)
        turn = await turns.cancel(ref, number, wait_s if applied else 0.0)
        return turn_answer(turn, applied, internal=include_internal_tools)

    @router.post(f"{AT}/{{turn}}/answers", responses=_RESPONSES)
    async def answer_turn(
        request: Request, ref: CallerRef, number: TurnNumber, body: AnswersRequest, delivery: common.Answered
    ) -> Response:
        """Answer requests of a waiting turn, and return the turn at its end or stream its events.

        The stream begins with the event of these answers.
        """
        return await new_turns.go_on(request.scope, ref, number, body, delivery)

    @router.get(f"{AT}/{{turn}}/effects", responses=responses(EffectPage, 404, 422))
    async def list_turn_effects(
        ref: CallerRef,
        number: TurnNumber,
        *,
        limit: common.Limit = 20,
        cursor: common.Cursor = None,
        order: common.Ascending = "asc",
    ) -> Response:
        """List the effects in the journal of a turn that runs or waits, without their results.

        A model call is listed once it was answered. The list of a turn that is over is empty: its journal is deleted.
        A page of large results may hold fewer than `limit`. `next_cursor` shows whether more follow.
        """
        of = ("effects", *ref, str(number), order)
        page = await turns.effects(ref, number, number_at(cursor, *of), limit, order)
        view = page_view(Page(page.items, page.next_cursor), effect_view, *of)
        return answer({**view, "complete": page.is_whole})

    return router


def set_conversation(body: TurnRequest, conversation_id: str) -> None:
    """Take the conversation of the path. Raises `InvalidRequestError` if the body names another one."""
    if body.conversation_id not in {None, conversation_id}:
        raise InvalidRequestError.at("/conversation_id", "is another one than the path's; leave it out")
    body.conversation_id = conversation_id


def wants_stream(accept: str | None) -> bool:
    """Return whether `Accept` names `text/event-stream` and does not rank JSON above it."""
    ranks: dict[str, float] = {}
    for part in (accept or "").split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        quality = next((word[2:] for word in parameters if word.startswith("q=")), "1")
        ranks[kind] = float(quality) if _QUALITY.fullmatch(quality) else 0.0
    stream = ranks.get("text/event-stream", 0.0)
    json = ranks.get("application/json", ranks.get("application/*", ranks.get("*/*", 0.0)))
    return stream > 0 and stream >= json


def turn_answer(turn: Turn, applied: str | None, *, internal: bool) -> Response:
    """Return a turn with status 200 if it is over, 202 if not. `applied` is the value of `Preference-Applied`."""
    headers = {"Location": common.location_of(turn)}
    if applied:
        headers["Preference-Applied"] = applied
    return answer(turn_view(turn, internal=internal), 200 if turn.outcome else 202, headers)


def wait_of(prefer: str | None, longest_s: float) -> tuple[float, str | None]:
    """Return the seconds to wait for a turn's end, and the preferences of `Prefer` (RFC 7240) that apply.

    `respond-async` together with `wait` waits that long, then lets the turn continue.
    """
    if prefer is None:
        return longest_s, None
    words = [part.partition(";")[0].strip() for part in prefer.split(",")]
    waits = [match for word in words if (match := _WAIT.fullmatch(word))]
    is_async = "respond-async" in map(str.lower, words)
    applied = ["respond-async"] if is_async else []
    wait_s = 0.0 if is_async else longest_s
    if waits:
        wait_s = float(min(int(waits[0][1]), int(longest_s) or longest_s))
        applied.append(f"wait={wait_s:g}")
    return wait_s, ", ".join(applied) or None


def _answer_of(sent: AnswerIn, pointer: str, by: Answerer, now: float) -> Answer:
    """Return an answer as a record, without images and files. A text answers a question."""
    decision = sent.decision or ("approve" if sent.text is not None else None)
    if not sent.has_result:
        if decision is None:
            sentence = "is missing: send approve or reject, text for a question, or result for a tool of yours"
            raise InvalidRequestError.at(f"{pointer}/decision", sentence)
        return Answer(sent.request_id, decision, sent.arguments, sent.reason, sent.text, by, now)
    if decision or sent.arguments is not None or sent.reason is not None:
        raise InvalidRequestError.at(pointer, "has a decision beside a result; send one of both")
    if sent.error is not None and (sent.result is not None or sent.images or sent.files):
        raise InvalidRequestError.at(f"{pointer}/error", "comes beside a result; send one of both")
    return Answer(sent.request_id, "result", by=by, at=now, result=sent.result, error=sent.error)
