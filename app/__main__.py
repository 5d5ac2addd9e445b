"""The command line: serve, and what an operator needs around it. Owns the HTTP server and the signals."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import logging
import os
import re
import secrets
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import uvicorn

from app import __version__
from app.errors import StartError
from app.seal import new_key
from app.settings import Settings, read_settings, strangers, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from app.wiring import Service

log = logging.getLogger("app")

SWITCH_INTERVAL_S = 0.001  # how long a computing agent may keep the interpreter from the event loop
STREAMS_S = 5
HURRY_S = 5  # for a thread that heeds no stop, and for giving its lease back


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; a configuration that cannot work ends with a sentence and status 2."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    status = 1
    try:
        status = command(options)
        sys.stdout.flush()
    except StartError as error:
        sys.stderr.write(f"smolsessions: {error.message}\n")
        status = 2
    except BrokenPipeError:  # who read our output has enough
        pass
    except BaseException:
        log.exception("smolsessions met a defect and ends")
    finally:
        sys.stderr.flush()
        # A hard exit: a thread that is stuck in foreign code must not keep the process (all of ours is closed).
        os._exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smolsessions",
        description="Stateful smolagents conversations behind HTTP.",
        epilog="Every setting is an environment variable; `smolsessions settings` lists them with their help.",
    )
    parser.add_argument("--version", action="version", version=f"smolsessions {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command)
        return sub

    add("serve", _serve, "serve HTTP and play turns in this process")
    add("settings", _settings, "list all settings with their defaults")
    add("new-key", _new_key, "print a new key for SMOLSESSIONS_SEAL_KEYS")
    add("openapi", _openapi, "print the description of the HTTP interface")
    api_key = add("new-api-key", _new_api_key, "make an API key for an owner")
    api_key.add_argument("owner", help="letters, digits, and . _ - @")
    return parser


def _serve(_options: argparse.Namespace) -> int:
    settings = read_settings()
    _log_to_stderr(settings)
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # not in the format: not looked up
    for warning in strangers():
        log.warning(warning)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    listening = _listen(settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(settings, listening))


class _Discreet(logging.Formatter):
    """Formats log lines without the model's key, which a provider's exception may repeat."""

    def __init__(self, secret: str) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._secret = secret

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return line.replace(self._secret, "***") if self._secret else line


def _log_to_stderr(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Discreet(os.environ.get(settings.model_api_key_env or "", "").strip()))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])


async def _run(settings: Settings, listening: socket.socket) -> int:
    stop = asyncio.Event()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
    ):  # first of all: in a container, whoever has no handler hears nothing
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    from app.wiring import make_service  # noqa: PLC0415 - smolagents and all; the other commands need none of it

    async with make_service(settings) as service:
        _calm_collector()
        _say(settings, service, listening)
        return await _until_stopped(settings, service, listening, stop)


async def _until_stopped(settings: Settings, service: Service, listening: socket.socket, stop: asyncio.Event) -> int:
    """Serve; on a signal claim nothing more, let running turns end in time, then close the connections."""
    server = _Server(
        uvicorn.Config(
            service.app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=STREAMS_S,
            lifespan="off",
            proxy_headers=False,
        )
    )
    worker = asyncio.create_task(service.worker.run())
    web = asyncio.create_task(server.serve([listening]))
    stopped: asyncio.Future[Any] = asyncio.create_task(stop.wait())
    vital: tuple[asyncio.Future[None], ...] = (worker, web, *service.running)
    await asyncio.wait((stopped, *vital), return_when=asyncio.FIRST_COMPLETED)
    defect = next((task for task in vital if task.done()), None)
    waits = f": {service.threads.busy} turns finish their step, {settings.drain_s:g} s at most; a second signal hurries"
    log.info("stopping%s", waits if service.threads.busy else "", extra={"action": "stop"})
    service.app.state.draining = True
    service.worker.drain()
    stop.clear()
    again = asyncio.create_task(stop.wait())
    await asyncio.wait({worker, again}, timeout=settings.drain_s, return_when=asyncio.FIRST_COMPLETED)
    service.worker.hurry()
    await asyncio.wait({worker}, timeout=HURRY_S)
    service.turns.stop_waiting()
    server.should_exit = True
    await asyncio.wait({web}, timeout=STREAMS_S + 1)
    for task in (worker, web, stopped, again):
        task.cancel()
    await asyncio.wait({worker, web, stopped, again}, timeout=2)
    if defect and (error := defect.exception()):
        if isinstance(error, StartError):
            raise error
        log.error("the service met a defect and ends", exc_info=error, extra={"action": "stop.defect"})
        return 1
    return 0


class _Server(uvicorn.Server):
    """Leaves the signals to us: what runs is drained before connections are closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _say(settings: Settings, service: Service, listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    base = f"http://{'127.0.0.1' if shown in {'0.0.0.0', '[::]'} else shown}:{port}"  # noqa: S104 - compared, not bound
    lines = {
        "page": f"{base}/",
        "docs": f"{base}/docs",
        "data": "in the store" if settings.redis_url else str(settings.data_dir.absolute()),
        "store": service.store,
        "agents": ", ".join(service.agents),
        "who": service.callers.sentence,
    }
    text = "\n".join(f"  {name:<7} {value}" for name, value in lines.items())
    sys.stdout.write(f"smolsessions {__version__} serves on {shown}:{port}\n{text}\n")
    sys.stdout.flush()


def _calm_collector() -> None:
    """Collect rarely: warm sessions are many objects that live, and looking through them cost a fifth of a turn."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _listen(settings: Settings) -> socket.socket:
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family[0], socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(family[4])
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "that is no host name"
        raise StartError(
            f"cannot listen on {settings.host}:{settings.port} ({reason}); stop what listens there, or set "
            "SMOLSESSIONS_PORT to another port or SMOLSESSIONS_HOST to an address of this machine"
        ) from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a dropped reader's connection must not wait for ever to be read
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.send_timeout_s * 1000))
    listening.listen(2048)
    listening.setblocking(False)
    return listening


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


def _settings(_options: argparse.Namespace) -> int:
    sys.stdout.write(table() + "\n")
    return 0


def _new_key(_options: argparse.Namespace) -> int:
    sys.stdout.write(new_key() + "\n")
    return 0


def _new_api_key(options: argparse.Namespace) -> int:
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,64}", options.owner):
        raise StartError("an owner is 1 to 64 letters, digits, and . _ - @")
    key = secrets.token_urlsafe(32)
    sys.stdout.write(f"{options.owner} {hashlib.sha256(key.encode()).hexdigest()}\n")
    sys.stderr.write(
        f"The line above belongs into SMOLSESSIONS_API_KEYS_FILE; the key itself is shown only now:\n{key}\n"
    )
    return 0


def _openapi(_options: argparse.Namespace) -> int:
    from app.web.api import schema_yaml  # noqa: PLC0415 - the other commands need no FastAPI

    sys.stdout.buffer.write(schema_yaml().encode())
    return 0


if __name__ == "__main__":
    main()
