"""Command `chat`: a conversation in the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import httpx2
import typer

from smolsessions.cli.flags import add_agents, spec_of, with_settings
from smolsessions.cli.remote import ApiKey, check_id, check_url, err, out, service, shorten
from smolsessions.client import ApiError
from smolsessions.core.errors import StartError
from smolsessions.wire.events import (
    MessageDelta,
    MessageRestarted,
    StepFinished,
    StepStarted,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smolsessions.client import Client
    from smolsessions.wire.events import TurnEvent
    from smolsessions.wire.turns import Image, Turn

END_S = 30
STYLES = {"answer": "", "thought": "dim italic", "code": "cyan", "plan": "dim", "arguments": None}
"""Styles of the parts of a model's message. None: not shown, as the tool call that follows has it."""


@with_settings
def chat(
    agent: Annotated[
        str | None,
        typer.Argument(help="Agent of a new conversation, or `my_agents:make_shop` to serve it. Else the default one."),
    ] = None,
    conversation: Annotated[str | None, typer.Option(callback=check_id, help="Conversation to go on with.")] = None,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="SMOLSESSIONS_URL", callback=check_url, help="Address of the service. Else one is started here."
        ),
    ] = None,
    api_key: ApiKey = None,
) -> None:
    """Chat with an agent. Ctrl-C stops the turn, Ctrl-D ends the chat.

    Settings and agents are those of the service that starts here. They have no effect with --url.
    """
    if agent and ":" in agent:
        if url:
            raise StartError(f"{agent} would be served here, and --url names another service; leave one of them out")
        add_agents([spec := spec_of(agent)])
        name, named, _ = spec.partition("=")
        agent = name if named else None  # the first agent is the default one
        os.environ.pop("SMOLSESSIONS_DEFAULT_AGENT", None)
    with _address(url) as address, service(address, api_key) as client:
        talk = _Chat(client, address, agent, conversation)
        talk.greet()
        while (message := _ask()) is not None:
            if message.strip():
                talk.play(message)
        talk.leave()


def _ask() -> str | None:
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - it edits the line; not on every platform
    while True:
        try:
            return input("\n> " if sys.stdin.isatty() else "")
        except KeyboardInterrupt:
            out.print("\nCtrl-D ends the chat.", style="dim")
        except EOFError:
            return None


@contextmanager
def _address(url: str | None) -> Iterator[str]:
    """Yield the address of a service. Without a `url` start one, which ends with the chat."""
    if url:
        yield url
        return
    for number in (signal.SIGTERM, signal.SIGHUP):  # the service must not outlive a closed terminal
        signal.signal(number, _end)
    command = [sys.executable, "-m", "smolsessions", "serve", "--port", "0", "--log-level", "error"]
    command += ["--until-stdin-ends"]  # also if this process is killed
    # A terminal sends Ctrl-C to its foreground group, and this service must survive it.
    process = subprocess.Popen(  # noqa: S603 - this program
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout
        first = process.stdout.readline()
        if not first:
            raise StartError("no service could be started for the chat; see above, or name one with --url")
        yield f"http://{first.split()[-1]}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


class _Chat:
    """One conversation on the screen."""

    def __init__(self, client: Client, address: str, agent: str | None, conversation: str | None) -> None:
        self._client = client
        self._address = httpx2.URL(address)
        self._place: dict[str, Any] = {"conversation_id": conversation} if conversation else {}
        if agent:
            self._place["agent"] = agent
        self._channel: str | None = None
        self._answer = ""
        self._linked: set[str] = set()
        """Images of this turn that are shown. An answer's are also its last step's."""

    def greet(self) -> None:
        """Show the conversation so far, or the agents."""
        if name := self._place.get("conversation_id"):
            for turn in self._client.list_turns(name):
                out.print(f"\n> {turn.message}", style="bold", markup=False)
                self._linked.clear()
                self._show_end(turn)
            return
        names = ", ".join(
            f"{each.name} (default)" if each.default else each.name for each in self._client.list_agents()
        )
        out.print(f"agents: {names}. Ctrl-C stops a turn, Ctrl-D ends the chat.", style="dim", markup=False)

    def leave(self) -> None:
        """Show how to go on."""
        if name := self._place.get("conversation_id"):
            out.print(f"\nAdd --conversation {name} to the command to go on with this conversation.", style="dim")

    def play(self, message: str) -> None:
        """Play a turn and show it. Ctrl-C stops it. A refusal does not end a chat with a person."""
        try:
            self._play(message)
        except ApiError as error:
            if not sys.stdin.isatty():
                raise
            self._end_line()
            err.print(f"smolsessions: {error}", style="red", markup=False)

    def _play(self, message: str) -> None:
        self._linked.clear()
        events = self._client.stream(message, **self._place)
        last: TurnEvent | None = None
        is_stopping = False
        while True:
            try:
                if last and is_stopping:
                    is_stopping = False
                    self._client.cancel_turn(last.conversation_id, last.turn)
                    events = self._client.get_turn_events(last.conversation_id, last.turn, after=last.seq)
                for event in events:
                    self._place = {"conversation_id": event.conversation_id}
                    last = event
                    self._show(event)
            except KeyboardInterrupt:
                self._end_line()
                if last is None:
                    out.print("\ninterrupted before the turn began", style="dim")
                    return
                is_stopping = True
                out.print("stopping …", style="dim")
            else:
                return

    def _show(self, event: TurnEvent) -> None:
        match event:
            case StepStarted():
                self._answer = ""
            case MessageDelta():
                self._say(event.channel, event.text)
            case MessageRestarted():
                self._end_line()
                self._answer = ""
                out.print("the model is asked again; its text so far is void", style="yellow")
            case ToolCalled() if not event.internal:
                self._end_line()
                given = shorten(event.arguments, 100)
                out.print(f"→ {event.agent}: {event.name} {given}", style="blue", markup=False)
            case ToolReturned() if not event.internal:
                self._end_line()
                result = f"✓ {shorten(event.result, 100)}" if event.ok else f"✗ {shorten(event.error, 200)}"
                out.print(f"  {result}", style="dim" if event.ok else "red", markup=False)
            case StepFinished():
                self._end_line()
                if event.error:
                    out.print(f"step {event.step}: {shorten(event.error.message, 200)}", style="red", markup=False)
                self._show_images(event.images)
            case TurnEnded():
                self._end_line()
                self._show_end(event.result, shown=self._answer)

    def _say(self, channel: str, text: str) -> None:
        style = STYLES.get(channel, "dim")
        if style is None:
            return
        if channel == "answer":
            self._answer += text
        if channel != self._channel:
            self._end_line()
            self._channel = channel
        out.print(text, style=style, end="", markup=False)

    def _end_line(self) -> None:
        if self._channel is not None:
            out.print()
        self._channel = None

    def _show_end(self, turn: Turn, shown: str | None = None) -> None:
        if turn.error:
            out.print(f"{turn.status}: {turn.error.code}: {turn.error.message}", style="red", markup=False)
        elif turn.status == "cancelled":
            out.print("stopped; its finished steps are kept", style="yellow")
        elif turn.reply is not None and turn.reply != shown:
            out.print(turn.reply, markup=False)
        self._show_images(turn.output_images)

    def _show_images(self, images: list[Image]) -> None:
        for image in images:
            if image.url in self._linked:
                continue
            self._linked.add(image.url)
            out.print(f"image, {image.width} x {image.height}: {self._address.join(image.url)}", markup=False)
