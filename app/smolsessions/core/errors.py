"""Errors as one tree of exceptions with stable codes. `web` maps them to statuses."""

from __future__ import annotations

import re
from typing import Self

NEWER = "is of a format newer than this release: run the one that wrote it, or a later one"
"""End of the sentence about stored data that this release cannot read."""
DAMAGED = "What the store holds of this conversation is damaged; restore it from a backup, or delete the conversation."


class ServiceError(Exception):
    """Something went wrong inside the service."""

    code = "internal"
    retry_after_s: int | None = None

    def __init_subclass__(cls, code: str | None = None, retry_after_s: int | None = None) -> None:
        """Derive the code from the name: that of `ConversationExistsError` is `conversation_exists`."""
        cls.code = code or re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).lower()
        cls.retry_after_s = retry_after_s

    def __init__(self, message: str | None = None, **extensions: object) -> None:
        """`message` is for the caller (default: the class's docstring). `extensions` are members of the problem."""
        self.message = message or (type(self).__doc__ or "").strip()
        self.extensions = extensions
        super().__init__(self.message)


class StartError(ServiceError, code="cannot_start"):
    """The service cannot start with this configuration. The message says what to change."""


class MalformedError(ServiceError):
    """The body is not JSON in UTF-8."""


class MediaTypeError(ServiceError, code="unsupported_media_type"):
    """Send the body as `Content-Type: application/json`."""


class MethodNotAllowedError(ServiceError):
    """This path does not take this method; /docs lists what it takes."""


class ForeignHostError(ServiceError):
    """This service answers only to names of its own (127.0.0.1, localhost); SMOLSESSIONS_ALLOWED_HOSTS lists more."""


class ForeignOriginError(ServiceError):
    """A page of another site asks; SMOLSESSIONS_CORS_ORIGINS lists those that may."""


class InvalidRequestError(ServiceError):
    """A field of the request does not hold what it should."""

    @classmethod
    def of(cls, problems: list[dict[str, str]]) -> Self:
        """Name each field by its JSON pointer, or each parameter by its place (`in`) and name."""
        places = [each.get("pointer") or f"{each.get('in', 'body')} {each.get('parameter', '')}" for each in problems]
        sentences = [f"{place.strip()}: {each['message']}" for place, each in zip(places, problems, strict=True)]
        return cls("; ".join(sentences[:5]), errors=problems)

    @classmethod
    def at(cls, pointer: str, message: str) -> Self:
        """Name the field by its JSON pointer."""
        return cls.of([{"pointer": pointer, "message": message}])

    @classmethod
    def in_parameter(cls, place: str, name: str, message: str) -> Self:
        """Name a parameter of the request's `path`, `query` or `header`."""
        return cls.of([{"in": place, "parameter": name, "message": message}])


class UnknownAgentError(InvalidRequestError):
    """No agent of that name is configured here."""


class ToolNameTakenError(InvalidRequestError):
    """A tool of the client has the name of a tool of the agent, or of another one of the client."""


class IdempotencyKeyReusedError(InvalidRequestError):
    """This Idempotency-Key was sent with another request before; use a new key for a new request."""


class NotFoundError(ServiceError):
    """This does not exist, or is not yours."""


class ConversationNotFoundError(NotFoundError):
    """This conversation does not exist, or is not yours; POST /turn without conversation_id starts one."""


class AgentNotFoundError(NotFoundError):
    """This service has no agent of that name; GET /agents lists all."""


class TurnNotFoundError(NotFoundError):
    """The conversation has no turn of that number."""


class ConflictError(ServiceError):
    """The request does not fit the state of what it names."""


class PreconditionFailedError(ServiceError):
    """The conversation has changed since it was read; read it again, and send the change with its new ETag."""


class ConversationExistsError(ConflictError):
    """A conversation with this id exists, or did lately; use another id, or none (SMOLSESSIONS_ID_REUSE_S)."""


class BusyError(ConflictError):
    """A turn of this conversation is running; wait for its end, then send the next."""

    @classmethod
    def of_turn(cls, number: int, advice: str, *, waits: bool) -> Self:
        """Name the turn, and say whether it waits for a person."""
        state = "waits for a person; answer its requests, or" if waits else "is running;"
        return cls(f"Turn {number} of this conversation {state} {advice}.", running_turn=number, waiting=waits)


class HistoryGoneError(ConflictError):
    """The variables that the conversation had then are not kept any more: only the newest 64 MiB of changes are."""


class TooManyTurnsError(ServiceError, retry_after_s=2):
    """As many turns wait in this conversation as may; try again when one of them is over."""


class OverloadedError(ServiceError, retry_after_s=5):
    """Too many turns wait for a free thread; try again later (SMOLSESSIONS_MAX_QUEUED_TURNS)."""


class OtherAgentError(ConflictError, code="agent_mismatch"):
    """The conversation belongs to another agent."""


class RequestNotFoundError(NotFoundError):
    """The turn has no request of that id; GET the turn for those that are open."""


class AlreadyAnsweredError(ConflictError):
    """This request has been answered with another decision, which counts."""


class NotWaitingError(ConflictError):
    """The turn does not wait for this answer any more: it was stopped, or its wait has expired."""


class AgentUnavailableError(ServiceError):
    """The agent is not configured here, or could not be made when the service started; its log says why."""


class AgentFailedError(ServiceError, code="agent_error"):
    """The agent's own code failed; its operator must fix it."""


class TooLargeError(ServiceError):
    """The request is larger than this service accepts."""


class HeadTooLargeError(ServiceError):
    """The head of the request is larger than 32 KiB or has more than 100 fields; send fewer or shorter ones."""


class RequestTimeoutError(ServiceError):
    """The request did not arrive in time; send it again at once and in full (SMOLSESSIONS_RECEIVE_TIMEOUT_S)."""


class TooManyConnectionsError(ServiceError, retry_after_s=5):
    """This process serves as many connections as it may; try again later (SMOLSESSIONS_MAX_CONNECTIONS)."""


class UnauthorizedError(ServiceError):
    """An API key is needed: send it as `Authorization: Bearer KEY`."""


class StoreUnavailableError(ServiceError, retry_after_s=2):
    """The store does not answer. The write may have arrived: check before you send it again."""


class StoreFullError(StoreUnavailableError, retry_after_s=30):
    """The store's memory is full, so it took no write; delete conversations, or let its operator raise `maxmemory`."""


class ShuttingDownError(ServiceError, retry_after_s=2):
    """This process is shutting down; try again when another one answers."""


class SealBrokenError(ServiceError):
    """A stored record does not verify: it was changed, moved, or sealed with a key that is not configured."""


class LeaseLostError(ServiceError):
    """Another worker, or a delete, took this turn; whatever is written for it now changes nothing."""


def codes_of_answers() -> dict[str, type[ServiceError]]:
    """Return the errors of this module that answer requests, by code."""
    kinds: list[type[ServiceError]] = [ServiceError]
    for kind in kinds:
        kinds += [each for each in kind.__subclasses__() if each.__module__ == __name__]
    return {kind.code: kind for kind in kinds if kind not in {StartError, LeaseLostError}}


FAILURES = {
    "agent_changed": "The process that ran the turn ended, and the agent has other prompts, tools or options now. "
    "Finished steps are kept.",
    "agent_error": "The agent's own code failed: its factory, a callback, a check or a policy.",
    "agent_unavailable": "No process that runs turns has the conversation's agent.",
    "context_overflow": "The conversation is longer than the model can read. Roll it back to the turn before a long "
    "message (`POST …/rollback`), or set a memory policy such as `token_budget` (`PATCH`).",
    "conversation_deleted": "The conversation was deleted while the turn ran or waited.",
    "crashed_repeatedly": "The process that ran the turn ended several times before the turn got any further.",
    "deadline_exceeded": "The turn took longer than its `deadline_s`. Finished steps are kept.",
    "internal": "The service failed; its log has the cause.",
    "interrupted": "A later turn with `on_busy: interrupt` stopped the turn. Finished steps are kept.",
    "model_auth": "The model's provider refuses the credentials of the service; its operator must fix them.",
    "model_error": "The model gave no usable answer, or its provider failed.",
    "model_timeout": "The model did not answer in time.",
    "model_unreachable": "The model's provider was not reached.",
    "model_unsupported_input": "The model cannot read a part of the conversation, such as an image.",
    "output_invalid": "The agent ran out of steps before its answer had the form of `output_schema`.",
    "rate_limited": "The model's provider takes no more requests of the service for now.",
    "replay_diverged": "The process that ran the turn ended, and the agent's replay asked for something else. "
    "Finished steps are kept.",
    "rolled_back": "A later turn with `on_busy: rollback` stopped the turn. Its steps are dropped.",
    "steered": "The running turn took the message, before its next model call. It is not played as a turn of its own.",
    "seal_broken": "A stored record of the conversation does not verify.",
}
"""Codes of a turn's failure, with their meaning."""
STEP_FAILURES = {
    "execution_error": "The model's code failed, or used something that it may not use.",
    "max_steps_error": "The agent ran out of steps.",
    "parsing_error": "The model's text is not a call or code that the agent can read.",
    "tool_call_error": "The model called a tool with arguments that do not fit it.",
    "tool_error": "A tool or a managed agent failed or does not exist, or a person rejected its call.",
}
"""Codes of errors of steps and calls, with their meaning. They may also have `agent_error` and `model_error`."""
