"""Command `chat`: a conversation in the terminal."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import httpx2
import typer
from rich.control import Control
from rich.segment import ControlType

from smolsessions.cli.flags import Named, add_agent, with_settings
from smolsessions.cli.folder_service import address_of
from smolsessions.cli.keyboard import typed_lines
from smolsessions.cli.questions import ask
from smolsessions.cli.remote import ApiKey, check_id, check_url, err, out, service, shorten
from smolsessions.client import ApiError, Client, ClientError
from smolsessions.core.errors import StartError
from smolsessions.settings import read_settings
from smolsessions.wire import events as wire
from smolsessions.wire.turns import File, Image, Turn

INVALID = 422
IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
"""Suffixes of files that the model sees."""
STYLES = {"answer": "", "thought": "dim italic", "plan": "dim", "code": None, "arguments": None}
"""Styles of the parts of a model's message. None: not shown, as the call that follows has it."""
CODE = "python_interpreter"
COMMAND = re.compile(r"/([a-z]+)(?: +(\d{1,9}))?\s*")
COMMANDS = """A line that you type while a turn runs joins it. If it waits for you, press Ctrl-C, and type it then.
/code shows the code of the last turn that ran some.
/fork [TURN] goes on in a copy of this conversation that ends with that turn, or with the last one.
/rollback [TURN] keeps the turns up to that one in the memory. Without a number it drops the last turn.
A space before the line sends it as a message."""
ERASED = Control((ControlType.CURSOR_MOVE_TO_COLUMN, 0), (ControlType.ERASE_IN_LINE, 2))


@with_settings
def chat(
    context: typer.Context,
    agent: Annotated[
        str | None,
        typer.Argument(help="Agent of a new conversation, or `my_agents:make_shop` to serve it. Else the default one."),
    ] = None,
    *,
    conversation: Annotated[str | None, typer.Option(callback=check_id, help="Conversation to go on with.")] = None,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="SMOLSESSIONS_URL",
            callback=check_url,
            help="Address of the service. Else that of this folder's data, or one that starts here.",
        ),
    ] = None,
    api_key: ApiKey = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            help="File or image for the agent, with the first message. May be repeated.",
        ),
    ] = None,
    named: Named = None,
) -> None:
    """Chat with an agent. Ctrl-C stops the turn, or leaves it waiting for an answer. Ctrl-D ends the chat.

    A line that you type while a turn runs joins it: the agent reads it before its next model call. The line /help lists
    the commands for code, forks and rollbacks.

    Without --url it joins the service that uses this folder's data, or starts one. Settings and agents that are named
    here are those of a service that starts.
    """
    if bare := next((each for each in named or () if ":" not in each), None):
        raise StartError(f"--agent serves one as NAME=MODULE:FACTORY; to choose an agent, write `chat {bare}`")
    own = [*([agent] if agent and ":" in agent else ()), *(named or ())]
    if url and own:
        raise StartError(f"{own[0]} would be served here, and --url names another service; leave one of them out")
    agent = add_agent(agent, named)
    has_own_settings = any(place.startswith("--") for name, place in context.obj.items() if name != "data_dir")
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - it edits the line; not on every platform
    with (
        address_of(url, read_settings(context.obj), may_join=not own and not has_own_settings) as (address, is_remote),
        service(address, api_key) as client,
    ):
        talk = _Chat(client, address, agent, conversation, file or [], is_remote=is_remote)
        talk.greet()
        while True:
            try:
                message = input("\n> " if sys.stdin.isatty() else "")
            except KeyboardInterrupt:
                out.print("\nCtrl-D ends the chat.", style="dim")
            except EOFError:
                break
            else:
                if (command := COMMAND.fullmatch(message)) and sys.stdin.isatty():
                    talk.obey(command[1], int(command[2]) if command[2] else None)
                elif message.strip():
                    talk.play(message)
        talk.leave()


class _Chat:
    def __init__(
        self,
        client: Client,
        address: str,
        agent: str | None,
        conversation: str | None,
        files: list[Path],
        *,
        is_remote: bool,
    ) -> None:
        """`is_remote`: the service goes on after the chat."""
        self._client = client
        self._is_remote = is_remote
        self._address = httpx2.URL(address)
        self._place: dict[str, Any] = {"conversation_id": conversation} if conversation else {}
        if agent:
            self._place["agent"] = agent
        self._place["images"] = [file for file in files if file.suffix.lower() in IMAGES]
        self._place["files"] = [file for file in files if file.suffix.lower() not in IMAGES]
        self._channel: str | None = None
        self._answer = self._result = ""
        """Text of the answer in this step, and result of its code."""
        self._waiting: wire.TurnEvent | None = None
        """Last event of the turn that was left waiting for an answer."""
        self._added: set[int] = set()
        """Turns of the messages that are to join the running turn. Those that it does not take are played after it."""
        self._linked: set[str] = set()
        """Images and files of this turn whose links were printed. The last step lists those of the answer, too."""

    def greet(self) -> None:
        """Show the conversation so far, or the agents."""
        if name := self._place.get("conversation_id"):
            for turn in self._client.list_turns(name):
                out.print(f"\n{turn.turn}> {turn.message}", style="bold", markup=False)
                self._linked.clear()
                self._show_end(turn)
                if turn.status == "waiting":
                    with self._refusals():
                        *_, last = self._client.get_turn_events(name, turn.turn, until="waiting")
                        self._follow(iter(()), last)
            return
        names = ", ".join(f"{one.name} (default)" if one.default else one.name for one in self._client.list_agents())
        keys = "A line typed while a turn runs joins it, Ctrl-C stops it, Ctrl-D ends the chat, /help lists commands."
        out.print(f"agents: {names}. {keys}", style="dim", markup=False)

    def leave(self) -> None:
        if name := self._place.get("conversation_id"):
            out.print(f"\nAdd --conversation {name} to the command to go on with this conversation.", style="dim")

    def play(self, message: str) -> None:
        self._linked.clear()
        with self._refusals():
            if self._waiting and sys.stdin.isatty():
                self._add(message)
                self._follow(iter(()), self._waiting)
            else:
                self._added.clear()
                self._follow(self._client.stream(message, until="waiting", **self._place), None)

    def obey(self, command: str, turn: int | None) -> None:
        """Run a command of the chat. `turn` is the number in its line."""
        conversation = self._place.get("conversation_id")
        if command not in {"code", "fork", "rollback"}:
            if command != "help":
                err.print(f"/{command} is no command", style="red")
            out.print(COMMANDS, style="dim", markup=False)
            return
        if not conversation:
            err.print(f"/{command} needs a conversation; send a message first", style="red")
            return
        with self._refusals():
            if command == "code":
                steps = (step for step in self._client.list_steps(conversation, order="desc") if step.code)
                _, last = next(itertools.groupby(steps, lambda step: step.turn), (0, []))
                code = "\n\n".join(reversed([str(step.code) for step in last]))
                out.print(code or "no turn ran code yet", style="cyan", markup=False)
            elif command == "fork":
                fork = self._client.fork_conversation(conversation, turn=turn)
                self._place["conversation_id"] = fork.id
                self._waiting = None
                out.print(f"goes on in {fork.id}, a copy up to turn {fork.turn_count}", style="dim")
            else:
                if turn is None:
                    turns = self._client.list_turns(conversation, order="desc")
                    kept = (each.turn for each in turns if not each.rolled_back)
                    turn = next(itertools.islice(kept, 1, None), 0)
                self._client.roll_back_conversation(conversation, turn)
                out.print(f"the memory ends with turn {turn}; later turns stay on record", style="dim")

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Show a refusal. It does not end a chat with a person."""
        try:
            yield
        except ApiError as error:
            if not sys.stdin.isatty():
                raise
            self._end_line()
            err.print(f"smolsessions: {error}", style="red", markup=False)

    def _follow(self, events: Iterator[wire.TurnEvent], last: wire.TurnEvent | None) -> None:
        """Show events up to the turn's end, and ask a person for what it waits for. `last` is the event before.

        Messages that were to join the turn, and that it has not taken, are played after it.
        """
        is_stopping, self._waiting = False, None
        while True:
            try:
                if last and is_stopping:
                    is_stopping = False
                    self._client.cancel_turn(last.conversation_id, last.turn)
                    events = self._client.get_turn_events(last.conversation_id, last.turn, after=last.seq)
                with closing(self._joined(events)) as shown:
                    for event in shown:
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
                if last is None or (isinstance(last, wire.TurnEnded) and not self._added):
                    return
                place, after = (last.conversation_id, last.turn), last.seq
                if isinstance(last, wire.TurnEnded):
                    place, after = (last.conversation_id, min(self._added)), 0
                elif not self._answer_all(self._client.get_turn(*place)):
                    self._waiting = last
                    return
                events = self._client.get_turn_events(*place, after=after, until="waiting")

    def _joined(self, events: Iterator[wire.TurnEvent]) -> Generator[wire.TurnEvent]:
        """Yield events. Lines that are typed after the first one join the turn."""
        for first in events:
            yield first
            with typed_lines(self._add):
                yield from events

    def _add(self, message: str) -> None:
        """Send a message that joins the open turn. Called in the thread that reads the keyboard, too."""
        if COMMAND.fullmatch(message):
            err.print("commands work once the turn is over", style="red")
        elif message.strip():
            try:
                self._added.add(self._client.submit(message, on_busy="steer", **self._place).turn)
            except ClientError as error:
                err.print(f"smolsessions: {error}", style="red", markup=False)
            else:
                out.print("sent; the agent reads it before its next model call", style="dim")

    def _answer_all(self, waiting: Turn) -> bool:
        """Ask a person for each answer and send it. Returns False if the turn is left waiting."""
        place = (waiting.conversation_id, waiting.turn)
        requests = [*waiting.requests]
        try:
            while requests and sys.stdin.isatty():
                try:
                    self._client.answer_turn(*place, [ask(requests[0])], wait_s=0)
                except ApiError as error:
                    err.print(f"smolsessions: {error}", style="red", markup=False)
                    if error.status == INVALID:
                        continue
                requests.pop(0)
        except (KeyboardInterrupt, EOFError):
            out.print()
        if requests:
            more = ", or answer with:" if self._is_remote else "."
            out.print(f"the turn waits for your answer. Write a line, and it asks again{more}", style="yellow")
            for each in requests if self._is_remote else ():
                decision = {"question": "--text TEXT", "result": "--result JSON"}.get(each.kind, "--approve")
                command = f"smolsessions turns answer {place[0]} {place[1]} {each.request_id} {decision}"
                out.print(f"{command} --url {self._address}", style="yellow", markup=False, soft_wrap=True)
        return not requests

    def _show(self, event: wire.TurnEvent) -> None:
        match event:
            case wire.StepStarted():
                self._answer = ""
            case wire.MessageDelta():
                self._say(event.channel, event.text)
            case wire.MessageRestarted():
                self._end_line()
                self._answer = ""
                out.print("the model is asked again; ignore its text so far", style="yellow")
            case wire.ToolCalled(name=name, arguments=str(code)) if name == CODE:
                self._end_line()
                first = code.partition("final_answer(")[0].strip().partition("\n")[0]  # the answer follows as text
                if first:
                    more = " … /code shows the rest" if first != code.strip() else ""
                    out.print(f"▸ {shorten(first, 100)}{more}", style="cyan", markup=False)
            case wire.ToolReturned(name=name) if name == CODE:
                self._result = event.result or ""
            case wire.ToolCalled() if not event.internal:
                self._end_line()
                given = shorten(event.arguments, 100)
                out.print(f"→ {event.agent}: {event.name} {given}", style="blue", markup=False)
            case wire.ToolReturned() if not event.internal:
                self._end_line()
                result = (
                    f"✓ {shorten(event.result, 100)}"
                    if event.ok
                    else f"✗ {shorten(event.error.message if event.error else '', 200)}"
                )
                out.print(f"  {result}", style="dim" if event.ok else "red", markup=False)
            case wire.StepFinished():
                self._end_line()
                if event.error:
                    out.print(f"step {event.step}: {shorten(event.error.message, 200)}", style="red", markup=False)
                elif self._result.strip() and not event.is_final_answer:
                    out.print(f"  ✓ {shorten(self._result, 100)}", style="dim", markup=False)
                self._result = ""
                self._show_media(event.images, event.files)
            case wire.MessageSteered():
                self._added.discard(event.from_turn)
                self._end_line()
                out.print(f"the agent reads: {event.message}", style="bold", markup=False)
            case wire.TurnEnded():
                self._added.discard(event.turn)
                self._end_line()
                self._show_end(event.result, shown=self._answer)

    def _say(self, channel: str, text: str) -> None:
        style = STYLES.get(channel, "dim")
        if channel == "answer":
            self._answer += text
        if channel != self._channel:
            self._end_line()
            self._channel = channel
            if style is None and out.is_terminal:
                out.print(f"writing {channel} …", style="dim", end="")
        if style is not None:
            out.print(text, style=style, end="", markup=False)

    def _end_line(self) -> None:
        if self._channel is not None and STYLES.get(self._channel, "") is not None:
            out.print()
        elif self._channel is not None and out.is_terminal:
            out.control(ERASED)
        self._channel = None

    def _show_end(self, turn: Turn, shown: str | None = None) -> None:
        if turn.error and turn.error.code == "steered":
            out.print(turn.error.message, style="dim", markup=False)
        elif turn.error:
            out.print(f"{turn.status}: {turn.error.code}: {turn.error.message}", style="red", markup=False)
        elif turn.status == "cancelled":
            out.print("stopped; its finished steps are kept", style="yellow")
        elif turn.reply is not None and turn.reply != shown:
            out.print(turn.reply, markup=False)
        if turn.outcome == "max_steps_error":
            out.print("out of steps: the agent answered with what it had", style="yellow")
        self._show_media(turn.output_images, turn.output_files)

    def _show_media(self, images: list[Image], files: list[File]) -> None:
        shown = {image.url: f"image, {image.width} x {image.height}" for image in images}
        shown |= {file.url: f"{file.name}, {file.media_type}, {file.size_bytes:,} bytes" for file in files}
        for url, about in shown.items():
            if url not in self._linked:
                self._linked.add(url)
                out.print(f"{about}: {self._address.join(url)}", markup=False)
