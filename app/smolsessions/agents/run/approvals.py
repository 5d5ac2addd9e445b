"""Approvals: the calls and questions of a turn that need a person's decision.

The service asks beneath the agent: the run ends before the call, the turn waits without a thread, and after the answer
a replay comes to the same call and finds the decision in the journal. A decision is bound to the call's id and to a
digest of its arguments.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from smolagents import MultiStepAgent
from smolagents.models import get_tool_json_schema

from smolsessions.agents.run.agent_run import INTERNAL_TOOLS, ToolCallInProgress
from smolsessions.agents.run.failures import ReplayDivergedError
from smolsessions.agents.run.recorder import Recorder
from smolsessions.agents.tools.ask_user import NAME as ASK_USER
from smolsessions.agents.values.json_forms import json_form, json_key, truncated
from smolsessions.agents.values.media import shown_media
from smolsessions.core.events import ReplayState
from smolsessions.core.frozen import changed
from smolsessions.core.media import ShownPart
from smolsessions.core.records import Turn
from smolsessions.core.requests import Answer, Approval, InputRequest, answer_key
from smolsessions.options import options_of

if TYPE_CHECKING:
    from smolsessions.agents.run.instrumentation import AgentNode

MAX_ASKED = 4  # requests for one call: the first, and three for a replay that comes with other arguments
MAX_OPEN = 100  # requests of a turn at a time; the rest is asked after them
MAX_SHOWN_BYTES = 256 * 1024
MAX_OPEN_BYTES = 2 * 1024 * 1024  # of their arguments and schemas; the turn's record repeats them
MAX_OPEN_MEDIA_BYTES = 32 * 1024 * 1024  # of the images and files among these arguments
TIMEOUT = "answer_timeout"
CODE = "python_interpreter"
_ASKED, _EXPIRED = "asked:", "expired:"
_CODE_PARAMETERS = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
_WILD = frozenset("*?[")
_ANSWER = TypeAdapter(Answer)


class Decision(NamedTuple):
    """Decision on a call. `refusal` and `text` are its result. `arguments` replace those that were shown."""

    approval: Approval | None = None
    refusal: str | None = None
    text: str | None = None
    arguments: dict[str, Any] | None = None


@dataclass(slots=True)
class _Asked:
    """A request as the journal has it. Times are Unix seconds."""

    digest: str
    asked_at: float
    expires_at: float


class Approvals:
    """Decisions on the calls of one turn, and the requests that are open. For any thread."""

    def __init__(
        self,
        recorder: Recorder,
        turn: Turn,
        replay: ReplayState | None,
        *,
        names: Collection[str],
        root: MultiStepAgent,
        ttl_s: float,
    ) -> None:
        """`names` are the tools that conversation and turn name. `ttl_s` bounds the wait for an answer."""
        self.requests: dict[str, InputRequest] = {}
        self.media: dict[str, bytes] = {}
        """Images and files that the requests show, as stored, by name."""
        self._recorder = recorder
        self._turn = turn
        self._names = names
        self._root = root
        self._ttl_s = ttl_s
        self._open_bytes = 0
        self._lock = threading.Lock()
        self._asked: dict[str, list[_Asked]] = {}
        self._effects = replay.effects if replay else {}
        asked = [key for key in self._effects if key.startswith(_ASKED)]
        for key in sorted(asked, key=lambda key: int(key.rpartition(":")[2])):
            self._asked.setdefault(key.split(":")[1], []).append(_Asked(**from_json(self._effects[key])))
        expired = [int(name.removeprefix(_EXPIRED)) for name in (replay.begun if replay else ()) if _is_expiry(name)]
        self._expired_us = max(expired, default=0)

    def decide(self, node: AgentNode, call: ToolCallInProgress, tool: Any, arguments: Any) -> Decision | None:
        """Return the decision on a call, noted in its record, or None if it needs none.

        Raises `TurnWaiting` to wait for it.
        """
        if not self._needs(node, call, arguments):
            return None
        shown = {"code": call.record.arguments} if tool is None else call.record.arguments  # None: a block of code
        size = len(to_json(shown))
        if size > MAX_SHOWN_BYTES:
            return _unshown(call, f"its arguments are larger than {MAX_SHOWN_BYTES // 1024} KiB")
        try:
            parts, media = shown_media(arguments)
        except ValueError as error:
            return _unshown(call, f"its arguments hold {error}")
        with self._lock:  # parallel calls: a request is counted before the next one asks whether it fits
            answer, request = self._answer(node, call, arguments, parts)
            if answer is None:
                parameters = _parameters(tool)
                self._open_bytes += size + len(to_json(parameters))
                self.media |= media
                self._ask(node, changed(request, arguments=shown, parameters=parameters, media=parts))
        return _noted(call, self._decided(node, call, answer, shown))

    def question(
        self, node: AgentNode, call: ToolCallInProgress, question: str, choices: tuple[str, ...] | None
    ) -> Decision:
        """Return the answer to a question. Raises `TurnWaiting` to wait for it."""
        arguments = {"question": question, "choices": choices}
        with self._lock:
            answer, request = self._answer(node, call, arguments)
            if answer is None:
                self._ask(node, changed(request, kind="question", question=question, choices=choices))
        if answer.decision == "approve":
            return Decision(text=answer.text)
        approval, why = _refused(answer)
        if approval.decision == "expired":
            return _noted(call, Decision(approval, f"[no answer] Nobody answered in time ({TIMEOUT})."))
        return _noted(call, Decision(approval, f"[declined] The user declined to answer this question.{why}"))

    def _needs(self, node: AgentNode, call: ToolCallInProgress, arguments: Any) -> bool:
        name, rules = call.record.name, self._rules(node)
        named = [rule for rule in rules if not callable(rule)]
        if any(matches(name, names) for names in (self._names, *named)):
            return True
        predicates = [rule for rule in rules if callable(rule)]
        if not predicates or name in INTERNAL_TOOLS or name == ASK_USER:
            return False
        key = f"asks:{call.record.call_id}:{call.digest(arguments, node.stored_classes)}"
        ask = partial(self._wanted, predicates, name, arguments)
        place, journal = f"{call.record.call_id}.a", self._recorder.journal
        if node.agent_run:  # a predicate may call the agent's model and tools
            ask = partial(node.agent_run.run_inside, place, ask)
        if journal.chosen(key):
            journal.skip_within(place)
        return journal.once(key, ask) == b"1"

    def _rules(self, node: AgentNode) -> list[Any]:
        """Return the rules of an agent and of those that manage it. One that several have is there once."""
        agents: list[Any] = [self._root]
        for name in node.agent_run.names if node.agent_run else ():
            agents.append(agents[-1].managed_agents[name])
        return list({id(rule): rule for rule in (options_of(agent).approve for agent in agents)}.values())

    def _wanted(self, predicates: Sequence[Callable[..., Any]], name: str, arguments: Any) -> bytes:
        """Ask authors' predicates, once for each call. If one raises, the call needs an approval."""
        for predicate in predicates:
            try:
                if predicate(name, arguments, self._recorder.caller):
                    return b"1"
            except Exception:  # noqa: BLE001 - an author's function
                return b"1"
        return b"0"

    def _answer(
        self, node: AgentNode, call: ToolCallInProgress, arguments: Any, parts: Sequence[ShownPart] = ()
    ) -> tuple[Answer | None, InputRequest]:
        """Return the answer to the request for this call, or None, and the request."""
        record, digest = call.record, call.digest(arguments, node.stored_classes)
        if parts:  # the bytes of large ones, too
            digest = hashlib.sha256("\n".join([digest, *(shown.part.name for shown in parts)]).encode()).hexdigest()
        asked = self._asked.setdefault(record.call_id, [])
        place = next((place for place, each in enumerate(asked) if digest == each.digest), len(asked))
        if place == MAX_ASKED:
            self._recorder.journal.diverged = True
            raise ReplayDivergedError
        if place == len(asked):
            if self._is_full and node.agent_run:
                node.agent_run.wait()  # asked after these
            now = time.time()
            asked.append(_Asked(digest, now, now + self._ttl_s))
            effect = {"digest": digest, "asked_at": now, "expires_at": now + self._ttl_s}
            self._recorder.journal.put(f"{_ASKED}{record.call_id}:{place}", to_json(effect))
        found = asked[place]
        request = InputRequest(
            self._id(record.call_id, place),
            "approval",
            record.call_id,
            record.name,
            node.agent_run.path if node.agent_run else "",
            record.step_id,
            found.asked_at,
            found.expires_at,
            replaces=self._id(record.call_id, place - 1) if place else None,
        )
        if data := self._effects.get(answer_key(request.request_id)):
            return _ANSWER.validate_json(data), request
        if int(found.expires_at * 1_000_000) <= self._expired_us:
            return Answer(request.request_id, "reject", reason=TIMEOUT, at=found.expires_at), request
        return None, request

    @property
    def _is_full(self) -> bool:
        media_bytes = sum(map(len, self.media.values()))
        sizes = (len(self.requests), MAX_OPEN), (self._open_bytes, MAX_OPEN_BYTES), (media_bytes, MAX_OPEN_MEDIA_BYTES)
        return any(size >= most for size, most in sizes)

    def _id(self, call_id: str, place: int) -> str:
        again = f":{place + 1}" if place else ""
        return f"{self._turn.ref.id}:{self._turn.number}:{call_id}{again}"

    def _ask(self, node: AgentNode, request: InputRequest) -> NoReturn:
        self.requests[request.request_id] = request
        assert node.agent_run
        node.agent_run.wait()

    def _decided(self, node: AgentNode, call: ToolCallInProgress, answer: Answer, shown: Any) -> Decision:
        name, notes = call.record.name, node.agent_run.notes if node.agent_run else []
        if answer.decision == "reject":
            approval, why = _refused(answer)
            cause = f"Nobody approved this call of {name} in time ({TIMEOUT})"
            if approval.decision == "rejected":
                cause = f"A person rejected this call of {name}"
            sentence = f"[rejected] {cause}. It was not made.{why}"
            if node.code_runs_in and name != CODE:  # the code may not show its result
                notes.append(sentence)
            return Decision(approval, sentence)
        if answer.arguments is None or _is_same(answer.arguments, shown):
            return Decision(Approval("approved", answer.at, answer.by, answer.reason))
        notes.append(f"A person changed the arguments of {name} to {truncated(to_json(answer.arguments).decode())}.")
        return Decision(Approval("edited", answer.at, answer.by, answer.reason), arguments=answer.arguments)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a tool is named. A pattern such as `delete_*` matches no internal tool, and no question."""
    for pattern in patterns:
        if name == pattern:
            return name != "final_answer"
        if _WILD & {*pattern} and fnmatchcase(name, pattern) and name not in INTERNAL_TOOLS and name != ASK_USER:
            return True
    return False


def edited(given: Any, shown: Any, new: Any) -> Any:
    """Return the arguments of a call after a person's change. Parts that are as shown stay the same objects."""
    if _is_same(new, shown):
        return given
    if isinstance(given, dict) and isinstance(shown, dict) and isinstance(new, dict):
        keys = {json_key(key): key for key in given}
        own = {key: keys.get(key, key) for key in new}
        return {own[key]: edited(given.get(own[key], value), shown.get(key), value) for key, value in new.items()}
    if isinstance(given, list | tuple) and isinstance(shown, list) and isinstance(new, list):
        pairs = zip(given, shown, new, strict=False)
        return [edited(*each) for each in pairs] + new[min(len(given), len(shown)) :]
    return new


def _is_same(one: Any, other: Any) -> bool:
    """Compare JSON data. Unlike in Python, 1 is neither 1.0 nor true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _unshown(call: ToolCallInProgress, why: str) -> Decision:
    """Reject a call whose arguments cannot be shown to a person."""
    sentence = f"[rejected] This call of {call.record.name} needs an approval, and {why}. It was not made."
    return _noted(call, Decision(refusal=sentence))


def _noted(call: ToolCallInProgress, decision: Decision) -> Decision:
    """Note a decision in the record of its call, and end a call that is refused."""
    arguments = call.record.arguments
    if decision.arguments is not None:
        arguments = decision.arguments["code"] if call.record.name == CODE else decision.arguments
    call.record = replace(call.record, approval=decision.approval, arguments=arguments)
    if decision.refusal is not None:
        call.refuse(decision.refusal)
    return decision


def _refused(answer: Answer) -> tuple[Approval, str]:
    if answer.by is None and answer.reason == TIMEOUT:
        return Approval("expired", answer.at, reason=TIMEOUT), ""
    why = f" Reason: {answer.reason}" if answer.reason else ""
    return Approval("rejected", answer.at, answer.by, answer.reason), why


def _is_expiry(name: str) -> bool:
    return name.startswith(_EXPIRED) and name.removeprefix(_EXPIRED).isdigit()


def _parameters(tool: Any) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments, in which `any` means any type and `nullable` also null."""
    if tool is None:
        return _CODE_PARAMETERS
    schema: dict[str, Any] = json_form(get_tool_json_schema(tool)["function"]["parameters"])
    for name, about in getattr(tool, "inputs", {}).items():
        shown = schema["properties"].get(name, {})
        if about.get("type") == "any":
            shown.pop("type", None)
        elif about.get("nullable") and isinstance(shown.get("type"), str):
            shown["type"] = [shown["type"], "null"]
    return {"additionalProperties": False} | schema
