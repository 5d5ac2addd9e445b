"""Export and import of variables: exact JSON comes back, other values are named, and no class is loaded."""

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smolagents import CodeAgent, ToolCallingAgent
from smolagents.local_python_executor import LocalPythonExecutor

import smolsessions
from smolsessions.agents.sandbox.variable_chunks import chunk_id
from smolsessions.agents.sandbox.variables import Variables, use_state
from smolsessions.agents.transfer import documents
from smolsessions.agents.transfer.document_media import export_files
from smolsessions.agents.transfer.variables import ImportTarget, export_variables, import_targets
from smolsessions.agents.values import dumps, loads
from smolsessions.core.attachments import File, encode_file
from tests.support import agents, rememberers
from tests.support.data import table
from tests.support.documents import CODE, MAX_PIXELS, PROGRAMS, REFUSED, again, document_of, exported, reader, taken_in
from tests.support.json_values import JSON, TEXTS, nested, pointer_of
from tests.support.tiers import repeated

MB = 1024 * 1024


def variables_of(names: list[str]) -> tuple[LocalPythonExecutor, Variables]:
    executor = LocalPythonExecutor(names, timeout_seconds=None)
    use_state(executor)
    executor.send_tools({})
    return executor, Variables(executor, 4_000_000)


def pieces_of(code: str) -> dict[str, bytes]:
    executor, variables = variables_of(["math", "functools", "collections", "datetime"])
    executor(code)
    return in_piece(variables.save().changed)


def in_piece(changed: dict[str, bytes]) -> dict[str, bytes]:
    return {f":v:{name}": data for name, data in changed.items()}


def pieces_with(values: dict[str, Any]) -> dict[str, bytes]:
    executor, variables = variables_of([])
    executor.state.update(values)
    return in_piece(variables.save().changed)


def values_in(pieces: dict[str, bytes]) -> dict[str, Any]:
    executor, variables = variables_of([])
    given = {name.removeprefix(":v:"): data for name, data in pieces.items() if name.startswith(":v:")}
    assert variables.load(given) == []
    return {name: executor.state[name] for name in sorted(executor.state.keys()) if not name.startswith("_")}


def missing(portable: Any) -> dict[str, str]:
    return {one["name"]: one["reason"] for one in portable.not_exported}


NAMES = st.from_regex(r"[a-z]{1,9}", fullmatch=True)


@repeated(4)
@given(st.dictionaries(NAMES, JSON | TEXTS | st.lists(st.integers()), max_size=3))
@settings(max_examples=10, deadline=None)
def test_values_with_exact_json_come_back(_time: int, values: dict[str, Any]) -> None:
    values = json.loads(json.dumps(values))  # no object occurs in them twice
    portable = exported(variables=pieces_with(values))
    code = portable.variables.get("", {"code": {}})["code"]
    assert code == values
    assert json.dumps(code) == json.dumps({name: values[name] for name in code})  # 1 is not 1.0, and order counts
    assert portable.not_exported == ()
    assert values_in(taken_in(document_of(portable)).variables) == values
    assert again(portable) == portable


NOTHING: dict[str, Any] = {"code": {}, "state": {}, "tools": {}, "files": {}, "lost": [], "reported": [], "reset": []}
NOT_JSON: dict[str, str] = PROGRAMS["not_json"]


@pytest.mark.parametrize("expression", NOT_JSON)
def test_a_value_that_json_would_change_is_named_with_the_reason_and_gone(expression: str) -> None:
    block = f"import math, functools, collections, datetime\nbad = {expression}\ngood = 1"
    portable = exported(variables=pieces_of(block))
    reasons = missing(portable)
    assert NOT_JSON[expression] in reasons["bad"]
    assert portable.variables[""]["code"] == {"good": 1}
    assert set(portable.variables[""]["lost"]) == reasons.keys()
    imported = taken_in(document_of(portable)).variables
    assert values_in(imported) == {"good": 1}
    assert set(json.loads(imported[":lost"])) == reasons.keys()


BLOCKS: list[tuple[str, str, str, dict[str, Any]]] = table("exported variables blocks")


@pytest.mark.parametrize(("block", "names", "reason", "left"), BLOCKS)
def test_variables_without_exact_json_are_named(block: str, names: str, reason: str, left: dict[str, Any]) -> None:
    portable = exported(variables=pieces_of(block))
    assert missing(portable).keys() == {*names.split()}
    assert all(reason in one for one in missing(portable).values())
    assert portable.variables[""]["code"] == left


def test_a_function_and_a_variable_of_one_name_leave_the_variable_there() -> None:
    portable = exported(variables=pieces_of("f = 1") | pieces_of("def f():\n    return 1"))
    assert portable.variables[""] == NOTHING | {"code": {"f": 1}}
    assert missing(portable).keys() == {"f"}


def test_agents_states_and_tools_states_come_back_and_what_is_no_json_is_named() -> None:
    state: dict[Any, bytes] = {
        "count": dumps({"a": [1, 2.5]}),
        "when": dumps((1, 2)),
        "half \ud800": dumps(1),
        7: dumps(1),
        "money": dumps(agents.Money(1, "EUR"), [agents.Money]),
    }
    pieces = {
        ":state": dumps(state),
        ":tool:notes": dumps(["a", {"b": None}]),
        ":tool:bag": dumps({1, 2}),
        ":reset:other": b"1",
        ":lost": b'["old"]',
        ":reported": b'["old"]',
        "helper:state": dumps({"x": dumps(1)}),
    }
    portable = exported(variables=pieces)
    assert portable.variables == {
        "": NOTHING
        | {"state": {"count": {"a": [1, 2.5]}}, "tools": {"notes": ["a", {"b": None}]}}
        | {"lost": ["old"], "reported": ["old"], "reset": ["bag", "other"]},
        "helper": NOTHING | {"state": {"x": 1}},
    }
    assert [(one["kind"], one["name"]) for one in portable.not_exported] == [
        ("state", "7"),
        ("state", "half \ufffd"),
        ("state", "money"),
        ("state", "when"),
        ("tool", "bag"),
    ]
    imported = taken_in(document_of(portable), {**CODE, "helper": ImportTarget(None, frozenset())}).variables
    assert loads(loads(imported[":state"])["count"]) == {"a": [1, 2.5]}
    assert loads(imported[":tool:notes"]) == ["a", {"b": None}]
    assert {name: imported[name] for name in (":reset:bag", ":lost", ":reported")} == {
        ":reset:bag": b"1",
        ":lost": b'["old"]',
        ":reported": b'["old"]',
    }
    assert export_variables(imported, reader().read)[0] == portable.variables


class _Writes:
    """Stand-in for a model's class that acts when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def piece(name: str, pickled: bytes, keys: list[str] | None = None) -> dict[str, bytes]:
    header = json.dumps([[name] if keys is None else keys, []]).encode()
    return {f":v:{chunk_id((name,))}": header + b"\n" + pickled}


def test_no_class_of_model_written_code_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "made"
    pickled = pickle.dumps({"x": _Writes(path)}, 5)
    portable = exported(variables=piece("x", pickled))
    assert missing(portable).keys() == {"x"}
    assert not path.exists()
    pickle.loads(pickled)
    assert path.exists()


def raw(*opcodes: bytes) -> bytes:
    return b"\x80\x05" + b"".join(opcodes) + b"."


X = b"\x8c\x01x\x94"
HOSTILE = {
    "nothing": b"",
    "no dict": pickle.dumps([1], 5),
    "other name": pickle.dumps({"y": 1}, 5),
    "two names": pickle.dumps({"x": 1, "y": 1}, 5),
    "length": raw(b"}", X, b"X\xff\xff\xff\xff", b"s"),
    "long length": raw(b"}", X, b"\x8d" + struct.pack("<Q", 2**63), b"s"),
    "memo": raw(b"}", X, b"j\xff\xff\xff\xff", b"s"),
    "pop": raw(b"}", b"0"),
    "empty": raw(b"s"),
    "no mark": raw(b"}", b"u"),
    "below the mark": raw(b"}", X, b"(", b"K\x01", b"s"),
    "into itself": raw(b"}\x94", X, b"h\x00", b"s"),
    "append to a number": raw(b"}", X, b"K\x01K\x01a", b"s"),
    "key that is a list": raw(b"}", b"(]K\x01u"),
    "persistent": raw(b"}", X, b"Pid\n", b"s"),
    "extension": raw(b"}", X, b"\x82\x01", b"s"),
    "global": raw(b"}", X, b"cos\nsystem\n", b"s"),
    "call": raw(b"}", X, b"\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R", b"s"),
    "build": raw(b"}", X, b"}}b", b"s"),
    "buffer": raw(b"}", X, b"\x97", b"s"),
    "many times": raw(b"}", X, b"(\x8d" + struct.pack("<Q", MB) + b"a" * MB + b"\x94" + b"h\x01" * 100 + b"l", b"s"),
    "text again and again": raw(
        b"}", X, b"](\x8d" + struct.pack("<Q", MB) + b"a" * MB + b"\x94" + b"h\x01" * 100 + b"e", b"s"
    ),
}


@pytest.mark.parametrize("pickled", HOSTILE.values(), ids=HOSTILE)
def test_bytes_that_are_no_json_value_are_named(pickled: bytes) -> None:
    portable = exported(variables=piece("x", pickled) | pieces_with({"good": [1]}))
    assert missing(portable).keys() == {"x"}
    assert portable.variables[""]["code"] == {"good": [1]}


@pytest.mark.parametrize("header", [b"[", b"[" * 100_000, b"[[1], []]", b'[["a b"], []]', b'[["\\ud800"], []]', b""])
def test_a_chunk_with_a_broken_header_is_named_by_its_id(header: bytes) -> None:
    portable = exported(variables={":v:0123456789abcdef": header + b"\n" + pickle.dumps({"x": 1}, 5)})
    assert missing(portable).keys() == {"0123456789abcdef"}
    json.dumps(portable.not_exported, ensure_ascii=False).encode()


def test_a_chunk_under_another_id_is_named() -> None:
    data = next(iter(piece("x", pickle.dumps({"x": 1}, 5)).values()))
    portable = exported(variables={":v:0123456789abcdef": data})
    assert missing(portable).keys() == {"x"}
    assert portable.variables[""]["code"] == {}


@repeated(5)
@given(JSON, st.data())
@settings(max_examples=20, deadline=None)
def test_changed_bytes_of_a_value_are_a_value_of_json_or_refused(_time: int, value: Any, data: st.DataObject) -> None:
    pickled = pickle.dumps({"x": value}, 5)
    changed = bytearray(pickled)
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    values = reader().read({"before:x": pickled, "after:x": bytes(changed)})
    assert values["before:x"] == value
    json.dumps(values["after:x"])


WRONG: list[tuple[Any, str]] = [
    *REFUSED["variables"],
    ({"": {"code": {"a": nested(200)}}}, "/variables//code/a"),
    ({"": {"code": dict.fromkeys("ab", "x" * 2_500_000)}}, "/variables//code"),
    ({"": {"code": {f"a{number}": 1 for number in range(10_001)}}}, "/variables//code"),
    ({"": {"state": {"a": float("nan")}}}, "/variables//state/a"),
    ({"": {"state": {"a": dict.fromkeys(map(str, range(600_000)), 1)}}}, "/variables//state/a"),
]


@pytest.mark.parametrize(("variables", "where"), WRONG)
def test_invalid_variables_are_refused_with_a_pointer(variables: Any, where: str) -> None:
    data = document_of(exported()) | {"variables": variables}
    places = {**CODE, "helper": ImportTarget(None, frozenset())}
    assert pointer_of(lambda: documents.import_document(data, places, MAX_PIXELS)).startswith(where)


def test_a_file_of_many_steps_and_names_is_held_once() -> None:
    files = export_files([encode_file(File(b"x" * 100_000, "text/plain", "a"))])
    (name,) = files
    data = {"files": files, "steps": [{"type": "task", "turn": 1, "task": "", "task_files": [name]}] * 1000}
    imported = documents.import_document(data, CODE, MAX_PIXELS)
    assert len({id(step.attachments[name]) for step in imported.steps}) == 1
    data["variables"] = {"": {"files": {f"n{number}": name for number in range(1000)}}}
    assert pointer_of(lambda: documents.import_document(data, CODE, MAX_PIXELS)) == "/variables//state"


def test_import_targets_cover_an_agent_and_its_managed_agents() -> None:
    def quiet(kind: Any, **options: Any) -> Any:
        return kind(model=agents.ScriptedModel(), **options)

    coder = quiet(CodeAgent, tools=[rememberers.Shelf()], name="coder", description="Codes.")
    smolsessions.options(coder, code_limits={"variables_mb": 2})
    threaded = quiet(CodeAgent, tools=[], name="threaded", description="Codes.")
    smolsessions.options(threaded, executor="thread")
    head = quiet(ToolCallingAgent, tools=[agents.echo], managed_agents=[coder, threaded])
    assert import_targets(head) == {
        "": ImportTarget(None, frozenset()),
        "coder": ImportTarget(2 * MB, frozenset({"shelf"})),
        "threaded": ImportTarget(None, frozenset()),
    }
