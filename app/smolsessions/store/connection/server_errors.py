"""What a store says that does not let us in, as sentences that name the mend."""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    MovedError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from smolsessions.core.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smolsessions.store.connection.servers import Address

RIGHTS = "~{p* &{p* +@read +@write +@pubsub -@dangerous +evalsha +script|load +info +time"
NODE_SENTENCE = "the store is a node of a cluster; write its address as redis+cluster://host:port,host:port"
MORE_RIGHTS = (
    "for a cluster also +cluster|slots, for SMOLSESSIONS_DURABILITY=replicated +wait, "
    "for a database other than 0 +select"
)
URL, PASSWORD_FILE = "SMOLSESSIONS_REDIS_URL", "SMOLSESSIONS_REDIS_PASSWORD_FILE"


@contextmanager
def start_errors(address: Address) -> Iterator[None]:
    """Turn whatever a server or the way to it answers into a `StartError`."""
    try:
        yield
    except (RedisError, OSError, TimeoutError, UnicodeError) as error:
        raise StartError(_sentence(error, address)) from error


def error_text(error: BaseException) -> str:
    """Give an error in a line; redis-py's own may go on with the innards of its clients."""
    return str(error).partition(" : <")[0] or ("timeout" if isinstance(error, TimeoutError) else type(error).__name__)


def _sentence(error: BaseException, address: Address) -> str:
    causes = list(_chain(error))
    for kind in (_of_certificates, _of_sentinels, _of_rights, _of_passwords, _of_kinds):
        if sentence := kind(causes, address):
            return sentence
    hint = "; does it speak TLS at this port?" if address.url.startswith("rediss") else ""
    return (
        f"the store at {URL} does not answer ({error_text(error)}){hint}; start it, or unset the "
        "variable to use the embedded store of `serve`"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__


def _first(causes: list[BaseException], *kinds: type[BaseException], words: str = "") -> BaseException | None:
    return next((cause for cause in causes if isinstance(cause, kinds) and words in str(cause)), None)


def _of_certificates(causes: list[BaseException], _address: Address) -> str | None:
    if found := _first(causes, ssl.SSLCertVerificationError):
        return (
            f"the store's certificate is not trusted ({found}); set SMOLSESSIONS_REDIS_CA_FILE to the authority that "
            "signed it, and use a host name that it was made for"
        )
    return None


def _of_sentinels(causes: list[BaseException], _address: Address) -> str | None:
    if found := _first(causes, ResponseError, words="unknown command 'SENTINEL'"):
        return (
            f"what answers at {URL} is no sentinel ({found}): name the sentinels' own ports, mostly 26379, or write "
            "the address of a server without them as redis://host:port"
        )
    if found := _first(causes, MasterNotFoundError):
        return (
            f"no sentinel in {URL} names a primary ({error_text(found)}): see that they answer at these "
            "addresses, that /service/ is the name that they know it by, and, where they ask for a password of their "
            "own, put ?sentinel_username=…&sentinel_password=… behind it"
        )
    return None


def _of_rights(causes: list[BaseException], _address: Address) -> str | None:
    if found := _first(causes, NoPermissionError):
        return (
            f"the store gives the user of {URL} no permission: {found}; the rights that it "
            f"needs are {RIGHTS}, {MORE_RIGHTS}"
        )
    return None


def _of_passwords(causes: list[BaseException], address: Address) -> str | None:
    if _first(causes, RedisError, words="without any password configured"):
        return (
            f"the store asks for no password, and one is given: take it out of {URL} (and unset {PASSWORD_FILE}), or "
            "set one in the store"
        )
    found = _first(causes, AuthenticationError, AuthenticationWrongNumberOfArgsError) or _about_authentication(causes)
    if found is None:
        return None
    mend = f"put its user into {URL}, and the password too or, better, into a file that {PASSWORD_FILE} names"
    if address.password_file:
        mend = f"put the password into {address.password_file} ({PASSWORD_FILE}) and its user into {URL}"
    return f"the store refuses us ({found}); {mend}"


def _about_authentication(causes: list[BaseException]) -> BaseException | None:
    words = ("auth", "username-password")
    return next((cause for cause in causes if any(word in str(cause).lower() for word in words)), None)


def _of_kinds(causes: list[BaseException], _address: Address) -> str | None:
    if _first(causes, MovedError):
        return NODE_SENTENCE
    if found := _first(causes, ResponseError, words="cluster support disabled"):
        return f"the store is no cluster ({found}); write its address as redis://host:port, or rediss:// with TLS"
    if _first(causes, ReadOnlyError):
        return (
            f"the store at {URL} is a replica, which takes no writes; write the address of its primary, or "
            "redis+sentinel:// or redis+cluster:// with those that know which one it is"
        )
    if found := _first(causes, ResponseError, words="DB index is out of range"):
        return f"the store has no such database ({found}); end {URL} with another number, or none"
    return None
