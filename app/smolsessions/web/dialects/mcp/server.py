"""Server of the Model Context Protocol without sessions, so that any process answers any request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import aclosing, closing, suppress
from typing import Any, cast

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from smolsessions import __version__
from smolsessions.core.errors import ConflictError, ServiceError, ShuttingDownError
from smolsessions.core.events import Logged, ToolCalled, TurnEnded, TurnWaiting
from smolsessions.core.records import AgentName, Owner, Ref, Turn
from smolsessions.core.requests import InputRequest
from smolsessions.core.turns import TurnSubscription
from smolsessions.web.dialects.gateway import Fold, Gateway, split_data_url
from smolsessions.web.dialects.mcp import tasks
from smolsessions.web.dialects.places import Place, key_digest, new_id, place_of, turn_of_request
from smolsessions.web.dialects.words import called_names, question_words
from smolsessions.wire.requests import AnswerIn, TurnRequest

PREFIX = "ask_"
_TEXT = {"type": "string"}
_INPUT = {
    "type": "object",
    "properties": {
        "message": {**_TEXT, "description": "Message to the agent, or the answer to what it asked."},
        "conversation_id": {**_TEXT, "description": "Conversation to go on with. Leave it out for a new one."},
    },
    "required": ["message"],
}
_OUTPUT = {
    "type": "object",
    "properties": {
        "conversation_id": _TEXT,
        "turn": {"type": "integer"},
        "status": {"enum": ["finished", "failed", "cancelled", "waiting"]},
        "reply": {"type": ["string", "null"]},
        "tool_call_names": {"type": "array", "items": _TEXT},
    },
    "required": ["conversation_id", "turn", "status"],
}
Context = ServerRequestContext[Any, Request]
logging.getLogger("mcp.server.streamable_http").setLevel(logging.WARNING)  # it has two lines for each request


class McpServer:
    """All agents as tools `ask_NAME(message, conversation_id?)`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        server: Server[Any] = Server("smolsessions", version=__version__, on_list_tools=self._list)
        server.add_request_handler("tools/call", types.CallToolRequestParams, self._call)
        server.extensions = {tasks.EXTENSION: {}}
        server.add_request_handler("tasks/get", tasks.TaskParams, self._get_task)
        server.add_request_handler("tasks/update", tasks.UpdateParams, self._update_task)
        server.add_request_handler("tasks/cancel", tasks.TaskParams, self._cancel_task)
        self._manager = StreamableHTTPSessionManager(server, stateless=True)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runs = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            async with self._manager.run():
                self._ready.set_result(None)
                await asyncio.Event().wait()
        finally:
            self._ready.cancel()  # of a start that failed: no request may wait for it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.shield(self._ready)
        await self._manager.handle_request(scope, receive, send)

    async def _list(self, _context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        tools = [
            types.Tool(
                name=f"{PREFIX}{info.version.name}",
                description=info.description or f"Ask the agent {info.version.name}.",
                input_schema=_INPUT,
                output_schema=_OUTPUT,
            )
            for info in self._gateway.conversations.agents()
        ]
        return types.ListToolsResult(tools=tools)

    async def _call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        agent = AgentName(params.name.removeprefix(PREFIX))
        if agent == params.name or agent not in {info.version.name for info in self._gateway.conversations.agents()}:
            raise MCPError(types.INVALID_PARAMS, f"No tool has the name {params.name[:80]!r}.")
        try:
            subscription, after = await self._begun(context, agent, params)
            return await self._ended(context, subscription, after)
        except ValidationError as error:
            first = error.errors()[0]
            return _refused(f"{'/'.join(map(str, first['loc']))}: {first['msg']}")
        except ServiceError as error:
            return _refused(error.message)

    async def _get_task(self, context: Context, params: tasks.TaskParams) -> dict[str, Any]:
        turn = await tasks.turn_of_task(self._gateway, context, params.task_id)
        if turn.status == "cancelled":
            return tasks.task_of(turn, params.task_id, "cancelled")
        if turn.outcome:
            result = self._result(turn, await self._gateway.media_of(turn))
        elif not turn.requests:
            return tasks.task_of(turn, params.task_id, "working")
        elif forms := _forms(context, turn.requests):
            asked = {request_id: _dumped(form) for request_id, form in forms.items()}
            return tasks.task_of(turn, params.task_id, "input_required", inputRequests=asked)
        else:
            result = _asked(turn, turn.requests)
        return tasks.task_of(turn, params.task_id, "completed", result=_dumped(result))

    async def _update_task(self, context: Context, params: tasks.UpdateParams) -> dict[str, Any]:
        """Answer open requests. Responses to other ones are ignored, as the extension wants."""
        turn = await tasks.turn_of_task(self._gateway, context, params.task_id)
        still_open = {each.request_id for each in turn.requests}
        given = {name: each for name, each in params.input_responses.items() if name in still_open}
        try:
            answers = [_answer_of(name, types.ElicitResult.model_validate(each)) for name, each in given.items()]
        except ValidationError as error:
            raise MCPError(types.INVALID_PARAMS, f"inputResponses: {error.errors()[0]['msg']}") from None
        if answers and context.request:
            place = place_of(turn)
            with suppress(ConflictError):  # answered meanwhile
                await self._gateway.answer(context.request.scope, place, answers)
        return {}

    async def _cancel_task(self, context: Context, params: tasks.TaskParams) -> dict[str, Any]:
        turn = await tasks.turn_of_task(self._gateway, context, params.task_id)
        await self._gateway.turns.cancel(turn.ref, turn.number)
        return {}

    async def _begun(
        self, context: Context, agent: str, params: types.CallToolRequestParams
    ) -> tuple[TurnSubscription, int]:
        """Submit a turn, or answer one that waits. Returns its subscription, and the event to go on after."""
        assert context.request, "the transport is HTTP"
        gateway, scope = self._gateway, context.request.scope
        owner = Owner(scope["owner"])
        given = params.arguments or {}
        if params.input_responses:
            place = turn_of_request(next(iter(params.input_responses)))
            answers = [_answer_of(name, response) for name, response in params.input_responses.items()]
            _, after = await gateway.answer(scope, place, answers)
            return await gateway.follow(Ref(owner, place.conversation_id), place.turn), after
        body = TurnRequest.model_validate({"message": given.get("message"), "agent": agent})
        wanted = Place(new_id(), 1)
        if (named := given.get("conversation_id")) is not None:
            found = await gateway.conversations.store.conversation(Ref(owner, str(named)))
            if found.running_turn:
                turn = await gateway.turns.store.turn(found.ref, found.running_turn)
                if turn.requests:
                    return await gateway.answer_in_words(scope, turn, body.message)
                if turn.message == body.message:  # the client asks again, as its stream broke
                    return await gateway.follow(found.ref, turn.number), 0
            wanted = Place(found.ref.id, found.turn_count + 1)
        return await gateway.play(scope, f"mcp:{key_digest(wanted, body.message)}", wanted, body), 0

    async def _ended(
        self, context: Context, subscription: TurnSubscription, after: int
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        """Wait until the turn is over or waits for a person. Tells the client of each call of a tool.

        A client with tasks gets one if that takes long.
        """
        fold, calls, turn = _Fold(after), 0, subscription.turn
        limit = asyncio.timeout(tasks.LONG_S if tasks.declares_tasks(context) else None)
        try:
            with closing(subscription):
                async with limit, aclosing(self._gateway.fold(subscription, fold)) as steps:
                    async for seq, _ in steps:
                        if seq > after and fold.calls > calls:
                            calls = fold.calls
                            await context.session.report_progress(calls, message=fold.called)
        except TimeoutError:
            if not limit.expired():  # of the store, for example
                raise
            return tasks.new_task(turn, after)
        except asyncio.CancelledError:
            if context.request and not context.request.app.state.draining:  # the client has cancelled the call
                self._gateway.turns.cancel_in_background(turn)
            raise
        if fold.ended:
            return self._result(fold.ended, fold.media)
        if not fold.requests:
            raise ShuttingDownError(
                f"The service restarts, and the turn goes on. Send the same message again with conversation_id "
                f"{turn.ref.id}."
            )
        if forms := _forms(context, fold.requests):
            return types.InputRequiredResult(input_requests=cast("types.InputRequests", forms))
        return _asked(turn, fold.requests)

    @staticmethod
    def _result(turn: Turn, media: Mapping[str, str]) -> types.CallToolResult:
        outcome = turn.outcome
        assert outcome, "a turn that ended has an outcome"
        text = outcome.reply or (outcome.error.message if outcome.error else "")
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
        for image in outcome.images:
            kind, encoded = split_data_url(media.get(image.name, ""))
            content += [types.ImageContent(type="image", data=encoded, mime_type=kind)] if encoded else []
        names = called_names(outcome)
        data = {"conversation_id": turn.ref.id, "turn": turn.number, "status": outcome.status, "reply": outcome.reply}
        return types.CallToolResult(
            content=content,
            structured_content={**data, "tool_call_names": names},
            is_error=outcome.status != "finished",
        )


class _Fold(Fold):
    """Fold of a turn's events after a number: its end, its open requests, and its calls of tools."""

    drops_void_text = False

    def __init__(self, after: int) -> None:
        self.ended: Turn | None = None
        self.requests: tuple[InputRequest, ...] = ()
        self.calls, self.called = 0, ""
        self._after = after

    def frames(self, logged: Logged, *, waits: bool) -> Iterable[bytes]:
        event = logged.event
        if isinstance(event, TurnEnded):
            self.ended, self.is_complete = event.result, True
        elif isinstance(event, TurnWaiting):
            if waits and logged.seq > self._after:
                self.requests, self.is_complete = event.requests, True
        elif isinstance(event, ToolCalled) and not event.internal:
            self.calls, self.called = self.calls + 1, event.name
        return ()


def _refused(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _dumped(result: types.CallToolResult | types.ElicitRequest) -> dict[str, Any]:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


def _forms(context: Context, requests: Iterable[InputRequest]) -> dict[str, types.ElicitRequest]:
    """Return the forms of questions and approvals by request, or none for a client that shows none."""
    capabilities = context.session.client_capabilities
    if context.protocol_version < tasks.VERSION or not (capabilities and capabilities.elicitation):
        return {}
    return {each.request_id: _elicited(each) for each in requests if each.kind != "result"}


def _asked(turn: Turn, requests: Iterable[InputRequest]) -> types.CallToolResult:
    """Return what a waiting turn asks, in words for a client's model."""
    questions = "\n".join(map(question_words, requests))
    how = f"Ask the user. Then call this tool with conversation_id {turn.ref.id}, and the answer as message."
    data = {"conversation_id": turn.ref.id, "turn": turn.number, "status": "waiting", "reply": questions}
    text = types.TextContent(type="text", text=f"The agent asks: {questions}\n{how}")
    return types.CallToolResult(content=[text], structured_content=data)


def _elicited(request: InputRequest) -> types.ElicitRequest:
    """Return a question or an approval as a form for the client's user."""
    if request.kind == "approval":
        message = f"Allow {request.tool} with {request.arguments}?"
        members: dict[str, Any] = {"approve": {"type": "boolean"}, "reason": _TEXT}
        required = ["approve"]
    else:
        message = request.question or ""
        members = {"answer": {**_TEXT, **({"enum": list(request.choices)} if request.choices else {})}}
        required = ["answer"]
    schema = {"type": "object", "properties": members, "required": required}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _answer_of(request_id: str, response: Any) -> AnswerIn:
    content = getattr(response, "content", None) if getattr(response, "action", "") == "accept" else None
    if content and isinstance(content.get("answer"), str):
        return AnswerIn(request_id=request_id, text=content["answer"])
    if content and content.get("approve") is True:
        return AnswerIn(request_id=request_id, decision="approve")
    reason = str(content.get("reason") or "") if content else "The user gave no answer."
    return AnswerIn(request_id=request_id, decision="reject", reason=reason[:10_000] or None)
