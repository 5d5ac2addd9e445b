"""Errors as one tree of exceptions with stable codes. `web` maps the codes to statuses."""

from __future__ import annotations

NEWER = "is of a format newer than this release: run the one that wrote it, or a later one"
"""End of the sentence about stored data that this release cannot read."""
DAMAGED = "What the store holds of this conversation is damaged; restore it from a backup, or delete the conversation."


class ServiceError(Exception):
    """Something went wrong inside the service."""

    code = "internal"
    retry_after_s: int | None = None

    def __init__(self, message: str | None = None, **extensions: object) -> None:
        """`message` is for the caller (default: the class's docstring). `extensions` are members of the problem."""
        self.message = message or (type(self).__doc__ or "").strip()
        self.extensions = extensions
        super().__init__(self.message)


class StartError(ServiceError):
    """The service cannot start with this configuration. The message says what to change."""

    code = "cannot_start"


class MalformedError(ServiceError):
    """The body is not JSON in UTF-8."""

    code = "malformed"


class MediaTypeError(ServiceError):
    """Send the body as `Content-Type: application/json`."""

    code = "unsupported_media_type"


class MethodNotAllowedError(ServiceError):
    """This path does not take this method; /docs lists what it takes."""

    code = "method_not_allowed"


class ForeignHostError(ServiceError):
    """This service listens on this machine alone and answers only to its names (127.0.0.1, localhost)."""

    code = "foreign_host"


class ForeignOriginError(ServiceError):
    """A page of another site asks; SMOLSESSIONS_CORS_ORIGINS lists those that may."""

    code = "foreign_origin"


class InvalidRequestError(ServiceError):
    """A field of the request does not hold what it should."""

    code = "invalid_request"

    @classmethod
    def at(cls, pointer: str, message: str) -> InvalidRequestError:
        """Name the field by its JSON pointer."""
        return cls(f"{pointer or 'body'}: {message}", errors=[{"pointer": pointer, "message": message}])

    @classmethod
    def in_parameter(cls, place: str, name: str, message: str) -> InvalidRequestError:
        """Name a parameter of the request's `path`, `query` or `header`."""
        return cls(f"{place} {name}: {message}", errors=[{"in": place, "parameter": name, "message": message}])


class UnknownAgentError(InvalidRequestError):
    """No agent of that name is configured here."""

    code = "unknown_agent"


class IdempotencyKeyReusedError(InvalidRequestError):
    """This Idempotency-Key was sent with another request before; use a new key for a new request."""

    code = "idempotency_key_reused"


class NotFoundError(ServiceError):
    """This does not exist, or is not yours."""

    code = "not_found"


class ConversationNotFoundError(NotFoundError):
    """This conversation does not exist, or is not yours; POST /turn without conversation_id starts one."""

    code = "conversation_not_found"


class TurnNotFoundError(NotFoundError):
    """The conversation has no turn of that number."""

    code = "turn_not_found"


class ConflictError(ServiceError):
    """The request does not fit the state of what it names."""

    code = "conflict"


class ConversationExistsError(ConflictError):
    """A conversation with this id exists, or did lately; use another id, or none (SMOLSESSIONS_ID_REUSE_S)."""

    code = "conversation_exists"


class BusyError(ConflictError):
    """A turn of this conversation is running; wait for its end, then send the next."""

    code = "busy"


class HistoryGoneError(ConflictError):
    """The variables that the conversation had then are not kept any more: only the newest 64 MiB of changes are."""

    code = "history_gone"


class TooManyTurnsError(ServiceError):
    """As many turns wait in this conversation as may; try again when one of them is over."""

    code = "too_many_turns"
    retry_after_s = 2


class OverloadedError(ServiceError):
    """Too many turns wait for a free thread; try again later (SMOLSESSIONS_MAX_QUEUED_TURNS)."""

    code = "overloaded"
    retry_after_s = 5


class OtherAgentError(ConflictError):
    """The conversation belongs to another agent."""

    code = "agent_mismatch"


class AgentUnavailableError(ServiceError):
    """The conversation's agent is not configured here."""

    code = "agent_unavailable"


class TooLargeError(ServiceError):
    """The request is larger than this service accepts."""

    code = "too_large"


class HeadTooLargeError(ServiceError):
    """The head of the request is larger than 32 KiB or has more than 100 fields; send fewer or shorter ones."""

    code = "head_too_large"


class RequestTimeoutError(ServiceError):
    """The request did not arrive in time; send it again at once and in full (SMOLSESSIONS_RECEIVE_TIMEOUT_S)."""

    code = "request_timeout"


class TooManyConnectionsError(ServiceError):
    """This process serves as many connections as it may; try again later (SMOLSESSIONS_MAX_CONNECTIONS)."""

    code = "too_many_connections"
    retry_after_s = 5


class UnauthorizedError(ServiceError):
    """An API key is needed: send it as `Authorization: Bearer KEY`."""

    code = "unauthorized"


class StoreUnavailableError(ServiceError):
    """The store does not answer. The write may have arrived: check before you send it again."""

    code = "store_unavailable"
    retry_after_s = 2


class ShuttingDownError(ServiceError):
    """This process is shutting down; try again when another one answers."""

    code = "shutting_down"
    retry_after_s = 2


class SealBrokenError(ServiceError):
    """A stored record does not verify: it was changed, moved, or sealed with a key that is not configured."""

    code = "seal_broken"


class LeaseLostError(ServiceError):
    """Another worker, or a delete, took this turn; whatever is written for it now changes nothing."""

    code = "lease_lost"
