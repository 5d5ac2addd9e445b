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
    RedisError,
    ResponseError,
)

from app.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.stores.servers import Address

RIGHTS = "~{p* &{p* +@read +@write +@pubsub -@dangerous +evalsha +script|load +info +time"
NODE_SENTENCE = "the store is a node of a cluster; write its address as redis+cluster://host:port,host:port"
_TLS_SENTENCE = (
    "; they are asked over TLS: SMOLSESSIONS_REDIS_CA_FILE must name the authority that signed their certificates, if "
    "the system does not know it, and the addresses must be names that these were made for"
)
MORE_RIGHTS = "for a cluster also +cluster|slots, for SMOLSESSIONS_DURABILITY=replicated +wait"


@contextmanager
def refusals(address: Address) -> Iterator[None]:
    """Turn whatever a server or the way to it answers into a `StartError`."""
    try:
        yield
    except (RedisError, OSError, TimeoutError, UnicodeError) as error:
        raise StartError(_sentence(error, address)) from error


def said(error: BaseException) -> str:
    """Give an error in a line; redis-py's own may go on with the innards of its clients."""
    return str(error).partition(" : <")[0] or ("timeout" if isinstance(error, TimeoutError) else type(error).__name__)


def _sentence(error: BaseException, address: Address) -> str:
    causes = list(_chain(error))

    def of(*kinds: type[BaseException]) -> BaseException | None:
        return next((cause for cause in causes if isinstance(cause, kinds)), None)

    if found := of(MasterNotFoundError):
        return (
            f"no sentinel in SMOLSESSIONS_REDIS_URL names a primary ({said(found)}): see that they answer at these "
            "addresses, that /service/ is the name that they know it by, and, where they ask for a password of their "
            "own, put ?sentinel_username=…&sentinel_password=… behind it"
            + (_TLS_SENTENCE if address.url.startswith("rediss") else "")
        )
    if found := of(NoPermissionError):
        return (
            f"the store gives the user of SMOLSESSIONS_REDIS_URL no permission: {found}; the rights that it "
            f"needs are {RIGHTS}, {MORE_RIGHTS}"
        )
    if found := of(AuthenticationError, AuthenticationWrongNumberOfArgsError) or _about_authentication(causes):
        mend = (
            "put its user into SMOLSESSIONS_REDIS_URL, and the password too or, better, into a file that "
            "SMOLSESSIONS_REDIS_PASSWORD_FILE names"
        )
        if address.password_file:
            mend = (
                f"put the password into {address.password_file} (SMOLSESSIONS_REDIS_PASSWORD_FILE) and its user into "
                "SMOLSESSIONS_REDIS_URL"
            )
        return f"the store refuses us ({found}); {mend}"
    if found := of(ssl.SSLCertVerificationError):
        return (
            f"the store's certificate is not trusted ({found}); set SMOLSESSIONS_REDIS_CA_FILE to the authority that "
            "signed it, and use a host name that it was made for"
        )
    if wrong_kind := _kind_sentence(causes):
        return wrong_kind
    hint = "; does it speak TLS at this port?" if address.url.startswith("rediss") else ""
    return (
        f"the store at SMOLSESSIONS_REDIS_URL does not answer ({said(error)}){hint}; start it, or unset the "
        "variable to use the embedded store of `serve`"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__


def _about_authentication(causes: list[BaseException]) -> BaseException | None:
    words = ("auth", "username-password")
    return next((cause for cause in causes if any(word in str(cause).lower() for word in words)), None)


def _kind_sentence(causes: list[BaseException]) -> str | None:
    for cause in causes:
        if isinstance(cause, MovedError):
            return NODE_SENTENCE
        if isinstance(cause, ResponseError) and "cluster support disabled" in str(cause):
            return f"the store is no cluster ({cause}); write its address as redis://host:port, or rediss:// with TLS"
    return None
