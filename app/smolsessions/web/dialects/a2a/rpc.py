"""Methods of A2A over JSON-RPC, and its errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import BaseModel, Field, StrictInt, ValidationError

from smolsessions.core.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    OtherAgentError,
    ServiceError,
    ShuttingDownError,
    TooLargeError,
)
from smolsessions.core.records import AgentName, Owner, Turn
from smolsessions.web.body import in_thread_if_large
from smolsessions.web.dialects.a2a.fold import TaskFold
from smolsessions.web.dialects.a2a.lists import ListParams, list_tasks
from smolsessions.web.dialects.a2a.messages import Message, Params, begin, turn_of
from smolsessions.web.dialects.a2a.tasks import Json, stored_task
from smolsessions.web.dialects.bodies import checked
from smolsessions.web.dialects.gateway import KEEP_S, STOP_S, DialectStream, Gateway
from smolsessions.web.dialects.late_answer import LateAnswer
from smolsessions.web.routes.common import answer

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
NO_TASK, NOT_CANCELABLE, NO_PUSH, UNSUPPORTED, WRONG_VERSION = -32001, -32002, -32003, -32004, -32009
_CODES: dict[type[ServiceError], int] = {
    NotFoundError: NO_TASK,
    InvalidRequestError: INVALID_PARAMS,
    OtherAgentError: INVALID_PARAMS,
    TooLargeError: INVALID_PARAMS,
    ConflictError: UNSUPPORTED,
}
_NO_PUSH = "This service sends no notifications; subscribe to the task."


class RefusedError(ServiceError):
    """Error that the protocol has a code for."""

    def __init__(self, rpc_code: int, message: str) -> None:
        super().__init__(message)
        self.rpc_code = rpc_code


class Configuration(Params):
    history_length: int | None = Field(None, ge=0)
    return_immediately: bool = False
    task_push_notification_config: dict[str, Any] | None = None


class SendParams(Params):
    message: Message
    configuration: Configuration = Configuration()


class TaskParams(Params):
    id: str
    history_length: int | None = Field(None, ge=0)


class Call(BaseModel):
    """Request of JSON-RPC."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: str | StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None
    method: str
    params: dict[str, Any] = {}


async def answer_call(gateway: Gateway, request: Request, agent: AgentName) -> Response:
    """Answer a call. Raises errors that the protocol has no code for: the store is away, for example."""
    call = Call(method="")
    try:
        call = await in_thread_if_large(Call.model_validate_json, await request.body())
        return await _answer(gateway, request, agent, call)
    except ValidationError as error:
        first = error.errors()[0]
        code = PARSE_ERROR if first["type"] == "json_invalid" else INVALID_REQUEST
        return _failed(call, code, f"{'/'.join(map(str, first['loc']))}: {first['msg']}")
    except ServiceError as error:
        return _refusal(call, error)


async def _answer(gateway: Gateway, request: Request, agent: AgentName, call: Call) -> Response:
    owner, method = Owner(request.scope["owner"]), call.method
    version = request.headers.get("a2a-version") or request.query_params.get("A2A-Version") or "0.3"
    if version.partition(".")[0] != "1":
        raise RefusedError(WRONG_VERSION, f"A2A {version:.20} is not served here; send the header A2A-Version: 1.0.")
    if method in {"SendMessage", "SendStreamingMessage"}:
        return await _send(gateway, request, agent, call)
    if method == "ListTasks":
        return _done(call, await list_tasks(gateway, owner, agent, checked(ListParams, "", call.params)))
    if method == "GetExtendedAgentCard":
        raise RefusedError(UNSUPPORTED, "The agent has no other card than the one at its well-known path.")
    if "PushNotificationConfig" in method:
        raise RefusedError(NO_PUSH, _NO_PUSH)
    if method not in {"GetTask", "CancelTask", "SubscribeToTask"}:
        raise RefusedError(NO_METHOD, f"No method has the name {method[:80]!r}.")
    sent = checked(TaskParams, "", call.params)
    turn = await turn_of(gateway, owner, agent, sent.id)
    if turn.outcome and method == "CancelTask":
        raise RefusedError(NOT_CANCELABLE, "The task is over.")
    if turn.outcome and method == "SubscribeToTask":
        raise RefusedError(UNSUPPORTED, "The task is over; GetTask returns it.")
    if method == "SubscribeToTask":
        subscription = await gateway.follow(turn.ref, turn.number)
        return DialectStream(gateway, subscription, TaskFold(turn, call.id, max(1, subscription.reader.length)))
    if method == "CancelTask":
        turn = await gateway.turns.cancel(turn.ref, turn.number, STOP_S)
    return _done(call, stored_task(turn, await gateway.media_of(turn), sent.history_length))


async def _send(gateway: Gateway, request: Request, agent: AgentName, call: Call) -> Response:
    sent = checked(SendParams, "", call.params)
    if sent.configuration.task_push_notification_config:
        raise RefusedError(NO_PUSH, _NO_PUSH)
    subscription, at = await begin(gateway, request.scope, agent, sent.message)
    if call.method == "SendStreamingMessage":
        return DialectStream(gateway, subscription, TaskFold(subscription.turn, call.id, at))
    subscription.close()

    async def result(turn: Turn) -> Response:
        media = await gateway.media_of(turn)
        return _done(call, {"task": stored_task(turn, media, sent.configuration.history_length)})

    async def ended() -> Response:
        try:
            turn = await gateway.turns.wait(subscription.turn, KEEP_S)
            if not turn.outcome and not turn.requests:
                raise ShuttingDownError
            return await result(turn)
        except ServiceError as error:
            return _refusal(call, error)

    return await result(subscription.turn) if sent.configuration.return_immediately else LateAnswer(ended())


def _done(call: Call, result: Json) -> Response:
    return answer({"jsonrpc": "2.0", "id": call.id, "result": result})


def _refusal(call: Call, error: ServiceError) -> Response:
    """Return an error with the protocol's code for it. Raises an error without one."""
    code = getattr(error, "rpc_code", None) or next((c for kind, c in _CODES.items() if isinstance(error, kind)), None)
    if code is None:
        raise error
    return _failed(call, code, error.message)


def _failed(call: Call, code: int, message: str) -> Response:
    """Return an error. Its status is 200, as a client reads no other answer."""
    return answer({"jsonrpc": "2.0", "id": call.id, "error": {"code": code, "message": message}})
