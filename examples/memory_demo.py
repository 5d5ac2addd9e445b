"""A conversation under each memory policy: the prompt's size as turns pass, and a record that stays whole.

    python examples/memory_demo.py              # a hundred turns under each policy, some ten seconds
    python examples/memory_demo.py --turns 20 --policy token_budget

It starts the service as a process of its own, with its data in a folder that is removed in the end, and talks HTTP to
it. The agent is scripted (its model is NO language model: it asks its one tool for a report, and answers), so this
needs no key and no network.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from smolagents import ChatMessage, LogLevel, MessageRole, Model, TokenUsage, ToolCallingAgent, tool
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction

ROOT = Path(__file__).resolve().parent.parent
START_S, ANSWER_S, END_S = 30, 30, 20
MARKS = (1, 10, 50, 100)
WINDOW = 5  # turns up to a mark; their median is its turn time
STEPS_A_TURN = 3  # the task, the tool call, the answer
POLICIES: dict[str, list[dict[str, Any]]] = {
    "no_pruning": [{"name": "no_pruning"}],
    "keep_last_n_steps": [{"name": "keep_last_n_steps", "n": 10}],
    "prune_old_observations": [{"name": "prune_old_observations", "keep_last_n": 4, "max_length": 100}],
    "token_budget": [{"name": "token_budget", "max_tokens": 6000}],
    "summarize": [{"name": "summarize", "after_tokens": 4000}],
    "chain": [
        {"name": "prune_old_observations", "keep_last_n": 4, "max_length": 100},
        {"name": "token_budget", "max_tokens": 6000},
    ],
}

SKIES = ("clear sky", "some clouds", "light rain", "heavy showers", "morning fog")
WINDS = ("hardly any wind", "a breeze from the west", "strong gusts", "wind from the north")

# --- The agent, as the service finds it: SMOLSESSIONS_AGENTS=reporter=examples.memory_demo:make_reporter


@tool
def read_report(station: int) -> str:
    """Reads the weather report of a station.

    Args:
        station: The station's number.
    """
    hours = (f"then {SKIES[(station + hour) % 5]} with {WINDS[(station * 3 + hour) % 4]}" for hour in range(30))
    return f"Report of station {station}: {', '.join(hours)}."


class NoLLM(Model):
    """Asks for the report that the last message names, then answers with its prompt's size. No language model."""

    def generate(
        self, messages: list[ChatMessage], *_args: Any, tools_to_call_from: Any = None, **_kwargs: Any
    ) -> ChatMessage:
        """Answer by three rules, and report a quarter of the characters as tokens."""
        texts = [_text(message) for message in messages]
        characters = sum(map(len, texts))
        tokens = characters // 4
        usage = TokenUsage(input_tokens=tokens, output_tokens=20)
        if not tools_to_call_from:  # the policy `summarize` asks for a summary
            stations = [int(number) for number in re.findall(r"Report of station (\d+)", texts[-1])]
            told = f"up to {max(stations)}" if stations else "as before"
            return ChatMessage(
                MessageRole.ASSISTANT, f"Weather reports were read, of stations {told}.", token_usage=usage
            )
        if "Report of station" in texts[-1]:
            shown = f"I was shown {len(messages)} messages, {characters} characters, {tokens} tokens."
            return _call("final_answer", {"answer": shown}, usage)
        station = int(re.findall(r"station (\d+)", texts[-1])[-1])
        return _call("read_report", {"station": station}, usage)


def _call(name: str, arguments: dict[str, Any], usage: TokenUsage) -> ChatMessage:
    function = ChatMessageToolCallFunction(name=name, arguments=arguments)
    call = ChatMessageToolCall(id=f"call_{os.urandom(6).hex()}", type="function", function=function)
    return ChatMessage(MessageRole.ASSISTANT, None, tool_calls=[call], token_usage=usage)


def _text(message: ChatMessage) -> str:
    content: Any = message.content or ""
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


def make_reporter() -> ToolCallingAgent:
    """Make the agent. Each conversation has a policy of its own."""
    return ToolCallingAgent(
        tools=[read_report],
        model=NoLLM(),
        description="Reads weather reports. Its model is scripted and no LLM.",
        verbosity_level=LogLevel.OFF,
    )


# --- The conversation, over HTTP


@dataclass(frozen=True)
class Seen:
    """Size of a turn's last prompt, and the turn's time."""

    turn: int
    messages: int
    characters: int
    tokens: int
    left_out: int
    ms: float


def main() -> int:
    """Play the conversations and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--turns", type=_turns, default=MARKS[-1], help="of each conversation, 1 to 1000 (default: 100)"
    )
    parser.add_argument("--policy", choices=list(POLICIES), action="append", help="this one alone (repeatable)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the service ends, too
    names = options.policy or list(POLICIES)
    begun, is_whole = time.monotonic(), True
    _progress("the service starts …")
    with _service() as port, closing(http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)) as connection:
        _progress("")
        print("What the model saw. The model is scripted and no LLM; tokens are what it reports, characters / 4.\n")
        print("policy                   turn  messages  characters   tokens  steps left out  turn ms")
        for name in names:
            conversation = _ask(connection, "POST", "/conversations", {"policy": POLICIES[name]})["id"]
            for seen in _play(connection, conversation, name, options.turns):
                print(
                    f"{name:<23}{seen.turn:6}{seen.messages:10}{seen.characters:12,}{seen.tokens:9,}"
                    f"{seen.left_out:16}{seen.ms:9.1f}"
                )
            is_whole &= _show_record(connection, conversation, options.turns)
    print(f"Policies: {json.dumps({name: POLICIES[name] for name in names})}")
    print(f"{len(names)} conversations of {options.turns} turns in {time.monotonic() - begun:.0f} s.")
    return 0 if is_whole else 1


def _play(connection: http.client.HTTPConnection, conversation: str, name: str, turns: int) -> Iterator[Seen]:
    took_ms = []
    for number in range(1, turns + 1):
        _progress(f"{name}: turn {number} of {turns}")
        message = {"conversation_id": conversation, "message": f"How was the weather at station {number}?"}
        start = time.perf_counter()
        turn = _ask(connection, "POST", "/turn", message)
        took_ms.append((time.perf_counter() - start) * 1000)
        if turn["status"] != "finished":
            raise SystemExit(f"turn {number} ended as {turn['status']}: {turn['error']}")
        if number in MARKS or number == turns:
            _progress("")
            messages, characters, tokens = map(int, re.findall(r"\d+", turn["reply"]))
            left_out = turn["left_out"]["steps"] if turn["left_out"] else 0
            yield Seen(number, messages, characters, tokens, left_out, median(took_ms[-WINDOW:]))


def _show_record(connection: http.client.HTTPConnection, conversation: str, turns: int) -> bool:
    """Read all steps and print whether the record is whole."""
    kinds: dict[str, int] = {}
    cursor = ""
    while True:
        page = _ask(connection, "GET", f"/conversations/{conversation}/steps?limit=100{cursor}")
        for step in page["items"]:
            kinds[step["type"]] = kinds.get(step["type"], 0) + 1
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    steps = kinds.get("task", 0) + kinds.get("action", 0)
    summaries = f", and {kinds['summary']} summaries" if "summary" in kinds else ""
    is_whole = steps == turns * STEPS_A_TURN
    word = "whole" if is_whole else "NOT WHOLE"
    print(f"   the record is {word}: {steps} of {turns * STEPS_A_TURN} steps in …/steps{summaries}\n")
    return is_whole


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json"})
    heard = connection.getresponse()
    said = heard.read().decode()
    if heard.status not in {200, 201}:
        raise SystemExit(f"{method} {path} was answered with {heard.status}: {said}")
    return json.loads(said)


@contextmanager
def _service() -> Iterator[int]:
    """Run the service on a free port of this machine. Yield the port."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SMOLSESSIONS_")}
    with tempfile.TemporaryDirectory(prefix="memory-demo-") as folder, Path(folder, "log").open("w+") as log:
        settings = {
            "SMOLSESSIONS_PORT": "0",
            "SMOLSESSIONS_DATA_DIR": str(Path(folder, "data")),
            "SMOLSESSIONS_AGENTS": "reporter=examples.memory_demo:make_reporter",
            "SMOLSESSIONS_LOG_LEVEL": "warning",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "smolsessions", "serve"],
            cwd=ROOT,
            env=kept | settings,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            yield _port(process, Path(log.name))
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


def _port(process: subprocess.Popen[str], log: Path) -> int:
    """Wait for the line that names the port."""
    assert process.stdout
    too_late = threading.Timer(START_S, process.kill)  # ends the wait for a line
    too_late.start()
    try:
        line = process.stdout.readline()
    finally:
        too_late.cancel()
    found = re.search(r" serves on \S+:(\d+)$", line.rstrip())
    if not found:
        raise SystemExit(f"the service did not start:\n{line}{log.read_text()[-2000:]}")
    return int(found[1])


def _turns(text: str) -> int:
    turns = int(text)
    if not 1 <= turns <= 1000:
        raise argparse.ArgumentTypeError("must be from 1 to 1000")
    return turns


def _progress(text: str) -> None:
    """Show a text in the last line of a terminal, if stderr is one."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
