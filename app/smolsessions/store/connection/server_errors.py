"""Errors of a store at start, as sentences that name the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions
from redis.asyncio.sentinel import MasterNotFoundError

from smolsessions.core.errors import StartError
from smolsessions.store.connection.servers import Address

RIGHTS = "~{p* &{p* +@read +@write +@pubsub -@dangerous +evalsha +script|load +info +time"
NODE_SENTENCE = "the store is a node of a cluster; write its address as redis+cluster://host:port,host:port"
_URL, _PASSWORD_FILE = "SMOLSESSIONS_REDIS_URL", "SMOLSESSIONS_REDIS_PASSWORD_FILE"
_SENTENCES: dict[tuple[type[BaseException], str], str] = {  # by class and words of the message
    (Exception, "CERTIFICATE_VERIFY_FAILED"): (  # one sentinel may say so, and another be silent
        "the store's certificate is not trusted ({error}); set SMOLSESSIONS_REDIS_CA_FILE to the authority that "
        "signed it, and use a host name that it was made for"
    ),
    (MasterNotFoundError, ""): (
        f"no sentinel in {_URL} names a primary ({{error}}): check that they answer at these addresses, that "
        "/service/ is the name that they know it by, and, if they need a password of their own, append "
        "?sentinel_username=…&sentinel_password=…"
    ),
    (exceptions.NoPermissionError, ""): (
        f"the store gives the user of {_URL} no permission: {{error}}; the rights that it needs are {RIGHTS}, for a "
        "cluster also +cluster|slots, for SMOLSESSIONS_DURABILITY=replicated +wait, for a database other than 0 +select"
    ),
    (exceptions.MovedError, ""): NODE_SENTENCE,
    (exceptions.ReadOnlyError, ""): (
        f"the store at {_URL} is a replica, which takes no writes; write the address of its primary, or "
        "redis+sentinel:// or redis+cluster:// with servers that know the primary"
    ),
}
_OF_LOGIN = (exceptions.AuthenticationError, exceptions.AuthenticationWrongNumberOfArgsError)
_LOGIN_WORDS = ("auth", "username-password")


@contextmanager
def start_errors(address: Address) -> Iterator[None]:
    """Raise every error of the server, or of the way to it, as a `StartError` whose sentence names the remedy."""
    try:
        yield
    except (exceptions.RedisError, OSError, TimeoutError, UnicodeError) as error:
        causes: list[BaseException] = []
        cause: BaseException | None = error
        while cause:
            causes.append(cause)
            cause = cause.__cause__ or cause.__context__
        for (kind, words), sentence in _SENTENCES.items():
            for cause in causes:
                if isinstance(cause, kind) and words in str(cause):
                    raise StartError(sentence.replace("{error}", error_text(cause))) from error
        refused: list[BaseException] = [cause for cause in causes if isinstance(cause, _OF_LOGIN)]
        refused += [cause for cause in causes if any(word in str(cause).lower() for word in _LOGIN_WORDS)]
        if refused:
            remedy = f"put its user into {_URL}, and the password there or, better, into the file {_PASSWORD_FILE}"
            if address.password_file:
                remedy = f"put the password into {address.password_file} ({_PASSWORD_FILE}) and its user into {_URL}"
            raise StartError(f"the store refuses the login ({refused[0]}); {remedy}") from error
        raise StartError(
            f"the store at {_URL} does not answer ({error_text(error)}); start it, correct its address (redis://, "
            "rediss:// with TLS, redis+sentinel:// or redis+cluster://, and the number of its database), or unset the "
            "variable to use the embedded store of `serve`"
        ) from error


def error_text(error: BaseException) -> str:
    """Return an error in one line. redis-py may append the internals of its clients."""
    return str(error).partition(" : <")[0] or ("timeout" if isinstance(error, TimeoutError) else type(error).__name__)
