"""Approvals: the calls and questions of a turn that need a person's decision, and those that the client makes.

The service asks beneath the agent: the run ends before the call, the turn waits without a thread, and after the answer
a replay comes to the same call and finds the answer in the journal. It is bound to the call's id and to a digest of
its arguments.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, NoReturn

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from smolagents import CodeAgent, MultiStepAgent
from smolagents.models import get_tool_json_schema

from smolsessions.agent_options import options_of
from smolsessions.agents.run.agent_run import INTERNAL_TOOLS, AgentRun, ToolCallInProgress
from smolsessions.agents.run.effects import encode_raised
from smolsessions.agents.run.failures import ReplayDivergedError
from smolsessions.agents.run.journal import digest_of
from smolsessions.agents.run.turn_run import TurnRun
from smolsessions.agents.tools.ask_user import NAME as ASK_USER
from smolsessions.agents.values.images import image_from_bytes
from smolsessions.agents.values.json_forms import json_form, json_key, truncated
from smolsessions.agents.values.media import shown_media
from smolsessions.core.attachments import decode_file
from smolsessions.core.records import ClientTool, Turn
from smolsessions.core.requests import Answer, Approval, InputRequest, RequestKind

log = logging.getLogger(__name__)

MAX_REQUESTS = 4  # for one call: the first, and three for a replay that comes with other arguments
MAX_OPEN = 100  # requests of a turn at a time; the rest is asked after them
MAX_SHOWN_BYTES = 256 * 1024
MAX_OPEN_BYTES = 2 * 1024 * 1024  # of their arguments and schemas; the turn's record repeats them
MAX_OPEN_MEDIA_BYTES = 32 * 1024 * 1024  # of the images and files among these arguments
TIMEOUT = "answer_timeout"
CODE = "python_interpreter"
_CODE_PARAMETERS = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
_WILD = frozenset("*?[")
_ANSWER = TypeAdapter(Answer)


class _JournaledRequest(NamedTuple):
    """A request as the journal has it. Times are Unix seconds."""

    digest: str
    asked_at: float
    expires_at: float
    kind: RequestKind = "approval"


class ClientToolError(Exception):
    """The client could not run its tool. The model reads the client's text."""


class Approvals:
    """Decisions on the calls of one turn, and the requests that are open. For any thread."""

    def __init__(
        self,
        turn_run: TurnRun,
        turn: Turn,
        *,
        names: Collection[str],
        root: MultiStepAgent,
        stored_classes: Collection[type],
        ttl_s: float,
    ) -> None:
        """`names` are the tools that conversation and turn name. `ttl_s` bounds the wait for an answer."""
        self.requests: dict[str, InputRequest] = {}
        self.media: dict[str, bytes] = {}
        """Images and files that the requests show, as stored, by name."""
        self._turn_run = turn_run
        self._id = f"{turn.ref.id}:{turn.number}"
        self._root_path = turn.agent.name
        self._names = names
        self._root = root
        self._stored_classes = stored_classes
        self._ttl_s = ttl_s
        self._open_bytes = 0
        self._lock = threading.Lock()
        self._journaled = {
            call_id: [_JournaledRequest(*from_json(data)) for _, data in sorted(requests.items())]
            for call_id, requests in turn_run.journal.requests.items()
        }

    def decide(self, agent_run: AgentRun, call: ToolCallInProgress, tool: Any, arguments: Any) -> dict[str, Any] | None:
        """Apply a person's decision to a call that needs one. Return the arguments if the person changed them.

        A rejected call is over. `tool` is None for a block of code. Raises `TurnSuspended` to wait for the decision.
        """
        name, agents = call.record.name, [self._root]
        for managed in agent_run.path.removeprefix(self._root_path).split("/")[1:]:
            agents.append(agents[-1].managed_agents[managed])
        if not self._needs(agents, agent_run, call, arguments):
            return None
        shown = {"code": call.record.arguments} if tool is None else call.record.arguments
        size = len(to_json(shown))
        try:
            if size > MAX_SHOWN_BYTES:
                raise ValueError(f"more than {MAX_SHOWN_BYTES // 1024} KiB")  # noqa: TRY301 - as `shown_media` does
            parts, media = shown_media(arguments)
        except ValueError as error:
            sentence = f"[rejected] This call of {name} needs an approval, and its arguments hold {error}"
            call.answer(f"{sentence}. It was not made.", is_refused=True)
            return None
        digest = digest_of(name, arguments, self._stored_classes)
        if parts:  # the bytes of large ones, too
            digest = hashlib.sha256("\n".join([digest, *(shown.part.name for shown in parts)]).encode()).hexdigest()
        with self._lock:  # parallel calls: a request is counted before the next one asks whether it fits
            answer, request = self._answer(agent_run, call, digest, "approval")
            if answer is None:
                parameters = _CODE_PARAMETERS if tool is None else _parameters(tool)
                self._open_bytes += size + len(to_json(parameters))
                self.media |= media
                self._wait(agent_run, replace(request, arguments=shown, parameters=parameters, media=parts))
        if answer.decision == "reject":
            approval, why = _refused(answer)
            cause = f"Nobody approved this call of {name} in time ({TIMEOUT})"
            if approval.decision == "rejected":
                cause = f"A person rejected this call of {name}"
            sentence = f"[rejected] {cause}. It was not made.{why}"
            if isinstance(agents[-1], CodeAgent) and name != CODE:  # the code may not show its result
                agent_run.notes.append(sentence)
            call.record = replace(call.record, approval=approval)
            call.answer(sentence, is_refused=True)
            return None
        new = answer.arguments
        if new is None or _is_same(new, shown):
            call.record = replace(call.record, approval=Approval("approved", answer.at, answer.by, answer.reason))
            return None
        agent_run.notes.append(f"A person changed the arguments of {name} to {truncated(to_json(new).decode())}.")
        call.record = replace(
            call.record,
            approval=Approval("edited", answer.at, answer.by, answer.reason),
            arguments=new["code"] if name == CODE else new,
        )
        return new

    def question(self, run: AgentRun, call: ToolCallInProgress, question: str, choices: tuple[str, ...] | None) -> None:
        """End a call with the answer to a question. Raises `TurnSuspended` to wait for it."""
        digest = digest_of(call.record.name, {"question": question, "choices": choices})
        with self._lock:
            answer, request = self._answer(run, call, digest, "question")
            if answer is None:
                self._wait(run, replace(request, question=question, choices=choices))
        if answer.decision == "approve":
            call.answer(answer.text or "")
            return
        approval, why = _refused(answer)
        call.record = replace(call.record, approval=approval)
        sentence = f"[declined] The user declined to answer this question.{why}"
        if approval.decision == "expired":
            sentence = f"[no answer] Nobody answered in time ({TIMEOUT})."
        call.answer(sentence, is_refused=True)

    def result(self, agent_run: AgentRun, call: ToolCallInProgress, tool: ClientTool, arguments: Any) -> Any:
        """Return the client's result of a call of its tool. A call without one in time is over.

        Raises `TurnSuspended` to wait for it, `ClientToolError` if the client sent an error, and `ValueError` for
        arguments that are too large to be shown.
        """
        name = call.record.name
        shown = json_form(arguments)
        size = len(to_json(shown))
        if size > MAX_SHOWN_BYTES:
            raise ValueError(f"the arguments of {name} hold more than {MAX_SHOWN_BYTES // 1024} KiB")
        with self._lock:
            answer, request = self._answer(agent_run, call, digest_of(name, arguments, self._stored_classes), "result")
            if answer is None:
                self._open_bytes += size + len(to_json([tool.parameters, tool.output_schema]))
                asked = replace(request, parameters=tool.parameters, output_schema=tool.output_schema)
                self._wait(agent_run, replace(asked, arguments=shown))
        if answer.decision == "reject":
            call.answer(f"[no result] The client did not run {name} in time ({TIMEOUT}).", is_refused=True)
            return None
        if answer.error is not None:
            error = ClientToolError(answer.error)
            call.effect = encode_raised(error)
            raise error
        media = [*map(image_from_bytes, answer.images), *filter(None, map(decode_file, answer.files))]
        if not media:
            return answer.result
        parts = media if answer.result is None else [answer.result, *media]
        return parts[0] if len(parts) == 1 else parts

    def _needs(
        self, agents: Collection[MultiStepAgent], agent_run: AgentRun, call: ToolCallInProgress, arguments: Any
    ) -> bool:
        """Return whether a call needs a decision, by the rules of its agent and of those that manage it."""
        name, journal = call.record.name, self._turn_run.journal
        rules = {id(rule): rule for rule in (options_of(agent).approve for agent in agents)}.values()
        if any(matches(name, names) for names in (self._names, *(rule for rule in rules if not callable(rule)))):
            return True
        predicates: list[Callable[..., Any]] = [rule for rule in rules if callable(rule)]
        if not predicates or name in INTERNAL_TOOLS or name == ASK_USER:
            return False
        place = f"{call.record.call_id}.a"

        def ask() -> bytes:
            with agent_run.nested(place):  # a predicate may call the agent's model and tools
                for predicate in predicates:
                    try:
                        if predicate(name, arguments, self._turn_run.caller):
                            return b"1"
                    except Exception:  # an author's function: a person decides
                        log.exception("the approve function of %s failed", name, extra={"action": "approve.failed"})
                        return b"1"
            return b"0"

        choice = f"asks:{call.record.call_id}:{digest_of(name, arguments, self._stored_classes)}"
        if journal.chosen(choice):
            journal.skip_within(place)
        return journal.once(choice, ask) == b"1"

    def _answer(
        self, agent_run: AgentRun, call: ToolCallInProgress, digest: str, kind: RequestKind
    ) -> tuple[Answer | None, InputRequest]:
        record, journal = call.record, self._turn_run.journal
        journaled = self._journaled.setdefault(record.call_id, [])
        same = (place for place, each in enumerate(journaled) if (each.digest, each.kind) == (digest, kind))
        place = next(same, len(journaled))
        earlier = [before for before in range(place) if journaled[before].kind == kind]
        if len(earlier) == MAX_REQUESTS:
            journal.diverged = True
            raise ReplayDivergedError
        if place == len(journaled):
            is_full = len(self.requests) >= MAX_OPEN or self._open_bytes >= MAX_OPEN_BYTES
            if is_full or sum(map(len, self.media.values())) >= MAX_OPEN_MEDIA_BYTES:
                agent_run.wait()  # asked after these
            now = time.time()
            journaled.append(_JournaledRequest(digest, now, now + self._ttl_s, kind))
            journal.write_request(record.call_id, place, to_json(journaled[place]))
        found = journaled[place]
        ids = [f"{self._id}:{record.call_id}", *(f"{self._id}:{record.call_id}:{n}" for n in range(2, place + 2))]
        request = InputRequest(
            ids[-1],
            kind,
            record.call_id,
            record.name,
            agent_run.path,
            record.step_id,
            found.asked_at,
            found.expires_at,
            replaces=ids[earlier[-1]] if earlier else None,
        )
        if data := journal.answers.get(request.request_id):
            return _ANSWER.validate_json(data), request
        if int(found.expires_at * 1_000_000) <= journal.expired_us:
            return Answer(request.request_id, "reject", reason=TIMEOUT, at=found.expires_at), request
        return None, request

    def _wait(self, agent_run: AgentRun, request: InputRequest) -> NoReturn:
        self.requests[request.request_id] = request
        agent_run.wait()


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


def _parameters(tool: Any) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments, in which `any` means any type and `nullable` also null."""
    schema: dict[str, Any] = json_form(get_tool_json_schema(tool)["function"]["parameters"])
    for name, about in getattr(tool, "inputs", {}).items():
        shown = schema["properties"].get(name, {})
        if about.get("type") == "any":
            shown.pop("type", None)
        elif about.get("nullable") and isinstance(shown.get("type"), str):
            shown["type"] = [shown["type"], "null"]
    return {"additionalProperties": False} | schema


def _is_same(one: Any, other: Any) -> bool:
    """Compare JSON data. Unlike in Python, 1 is neither 1.0 nor true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _refused(answer: Answer) -> tuple[Approval, str]:
    if answer.by is None and answer.reason == TIMEOUT:
        return Approval("expired", answer.at, reason=TIMEOUT), ""
    why = f" Reason: {answer.reason}" if answer.reason else ""
    return Approval("rejected", answer.at, answer.by, answer.reason), why
