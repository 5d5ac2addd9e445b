"""Plans of all conversations of a run, drawn from its seed. The calm round and the wild one play the same plans."""

import json
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

TURNS_EACH = 4
EAGER, KEYED = 0.25, 0.5
CITIES = ["Oslo", "Rome", "Bern", "Lima", "Baku"]
# Agents with their shares of the conversations.
SHARES = {
    "caller": 3,
    "speaker": 3,
    "planner": 1,
    "manager": 4,
    "coder": 4,
    "fast-coder": 2,
    "boss": 2,
    "careful": 2,
    "careful-coder": 1,
    "asker": 3,
    "asking-coder": 2,
    "steered": 2,
}
FETCH = {
    "name": "fetch",
    "description": "Fetch a thing of the client.",
    "parameters": {
        "type": "object",
        "properties": {"key": {"type": "string"}, "ms": {"type": "integer"}},
        "required": ["key", "ms"],
    },
}
Entry = dict[str, Any]
Maker = Callable[[random.Random, str], Entry]
"""Makes an entry of a script from its place. The keys of the entry's calls begin with that place."""


@dataclass(frozen=True)
class Planned:
    """One turn. All keys in its script begin with `key`."""

    key: str
    number: int
    message: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """One conversation. An eager one submits all turns at once. A keyed one is posted again without a lookup."""

    name: str
    agent: str
    turns: tuple[Planned, ...]
    eager: bool
    keyed: bool


def draw_plans(turns: int, seed: int, agents: Collection[str] = SHARES) -> list[Plan]:
    draw = random.Random(seed)
    order = [agent for agent, share in SHARES.items() if agent in agents for _ in range(share)]
    draw.shuffle(order)
    lengths = [min(TURNS_EACH, turns - first) for first in range(0, turns, TURNS_EACH)]
    return [_plan(draw, f"t{place:03}", order[place % len(order)], length) for place, length in enumerate(lengths)]


def _plan(draw: random.Random, name: str, agent: str, length: int) -> Plan:
    turns = tuple(_turn(draw, f"{name}.{number}", agent, number) for number in range(1, length + 1))
    eager = draw.random() < EAGER or agent == "steered"
    return Plan(name, agent, turns, eager=eager, keyed=draw.random() < KEYED)


def _turn(draw: random.Random, key: str, agent: str, number: int) -> Planned:
    makers = draw.choice(_KINDS.get(agent, _CALLS))
    body: dict[str, Any] = {"max_steps": 2} if makers is _TOO_LONG else {}
    if agent == "steered" and number % 2 == 0:  # joins the turn before it, unless that one has ended
        makers, body = [_prompt], {"on_busy": "steer"}
    if agent in {"asker", "asking-coder"}:
        body["client_tools"] = [FETCH]
    return Planned(key, number, json.dumps(_script(draw, key, *makers)), body)


def _script(draw: random.Random, prefix: str, *makers: Maker) -> list[Entry]:
    return [
        {"key": f"{prefix}/{number}", "wait_ms": draw.randint(30, 150), **maker(draw, f"{prefix}/{number}")}
        for number, maker in enumerate(makers)
    ]


def _calls(*names: str) -> Maker:
    """Call tools and managed agents, in parallel if several are named."""

    def make(draw: random.Random, place: str) -> Entry:
        return {"call": [_call(draw, name, f"{place}.{letter}") for name, letter in zip(names, "abc", strict=False)]}

    return make


def _call(draw: random.Random, name: str, key: str) -> list[Any]:
    match name:
        case "helper" | "coder":
            return [name, {"task": _task(draw, name, key)}]
        case "charge":
            return [name, {"key": key, "token": f"{draw.random()}"}]
        case "work" | "rest":
            return [name, {"key": key, "ms": draw.randint(20, 200), "text": draw.choice(CITIES)}]
    return [name, {"key": key, "ms": draw.randint(100, 500)}]


def _task(draw: random.Random, name: str, key: str) -> str:
    does = [_draws] if name == "coder" else [_calls("work"), _calls("work", "work")][: draw.randint(1, 2)]
    return json.dumps(_script(draw, key, *does, _prompt))


def _asks(draw: random.Random, place: str) -> Entry:
    return {"call": [["ask_user", {"question": f"{place}?"}], _call(draw, "work", f"{place}.b")]}


def _charges(_draw: random.Random, place: str) -> Entry:
    code = f"""
import random
for number in range(3):
    token = str(random.random())
    print(charge(key=f'{place}.{{number}}', token=token) == 'charged ' + token)
    try:
        print(fetch(key=f'{place}.f{{number}}', ms=1))
    except Exception as error:
        print(error)
print(ask_user('{place}?'))
"""
    return {"code": code.strip()}


def _says(text: str) -> Maker:
    return lambda _draw, _place: {"say": text}


def _prompt(_draw: random.Random, _place: str) -> Entry:
    """Answer with a digest of the whole prompt."""
    return {"prompt": True}


def _fails(_draw: random.Random, _place: str) -> Entry:
    return {"raise": "the provider is away"}


def _draws(draw: random.Random, place: str) -> Entry:
    """Charge a random token, and keep it."""
    code = f"""
import random
token = ''.join(random.choice('0123456789abcdef') for _ in range(12))
work(key='{place}.a', ms={draw.randint(20, 120)}, text=token)
print(charge(key='{place}.b', token=token) == 'charged ' + token)
work(key='{place}.c', ms={draw.randint(20, 120)}, text=token)
tokens = [token]
print(len(tokens))
"""
    return {"code": code.strip()}


def _loops(draw: random.Random, place: str) -> Entry:
    """Loop over a set of texts, whose order differs between processes."""
    code = f"""
seen = []
for city in {{{", ".join(map(repr, draw.sample(CITIES, 4)))}}}:
    seen.append(work(key='{place}.' + city, ms={draw.randint(20, 60)}, text=city))
tokens = [*sorted(seen), charge(key='{place}.b', token=''.join(seen)) == 'charged ' + ''.join(seen)]
print(tokens)
"""
    return {"code": code.strip()}


def _goes_on(draw: random.Random, place: str) -> Entry:
    """Use variables of earlier blocks and of earlier turns."""
    code = f"""
try:
    rounds_played = rounds_played + 1
except Exception:
    rounds_played = 1
rest(key='{place}.a', ms={draw.randint(20, 120)}, text=str(rounds_played))
print(rounds_played)
"""
    return {"code": code.strip()}


def _breaks(_draw: random.Random, place: str) -> Entry:
    return {"code": f"kept = work(key='{place}.a', ms=50, text='kept')\nrefuse(key='{place}.b', ms=20)"}


def _transfers(draw: random.Random, place: str) -> Entry:
    return {"code": f"print(transfer(key='{place}.a', ms={draw.randint(100, 500)}))"}


def _sends(*names: str) -> Maker:
    def make(draw: random.Random, place: str) -> Entry:
        tasks = [(name, _task(draw, name, f"{place}.{letter}")) for name, letter in zip(names, "abc", strict=False)]
        return {"code": "\n".join(f"print({name}(task={task!r}))" for name, task in tasks)}

    return make


_TOO_LONG = [_calls("work"), _calls("work"), _calls("work")]
_CALLS: list[list[Maker]] = [
    [_calls("work"), _calls("rest", "work", "rest"), _prompt],
    [_calls("work", "work"), _calls("refuse"), _calls("work"), _prompt],
    [_calls("charge"), _calls("work"), _calls("work", "charge"), _prompt],
    [_calls("work"), _calls("work", "work"), _fails],
    _TOO_LONG,
]
_CODE: list[list[Maker]] = [
    [_draws, _loops, _goes_on, _prompt],
    [_loops, _draws, _goes_on, _prompt],
    [_goes_on, _breaks, _loops, _prompt],
]
_KINDS: dict[str, list[list[Maker]]] = {
    "manager": [
        [_calls("helper"), _calls("helper"), _prompt],
        [_calls("helper", "helper"), _calls("work", "work"), _prompt],
        [_calls("work"), _calls("helper", "coder", "helper"), _prompt],
        [_calls("coder"), _prompt],
    ],
    "boss": [[_sends("helper", "helper"), _goes_on, _prompt], [_draws, _sends("coder", "helper"), _prompt]],
    "coder": _CODE,
    "fast-coder": _CODE,
    "careful": [
        [_calls("work"), _calls("transfer"), _calls("work", "work"), _says("careful")],
        [_calls("transfer"), _says("careful")],
    ],
    "asker": [
        [_calls("charge"), _calls("fetch", "charge", "charge"), _prompt],
        [_calls("charge", "charge"), _asks, _calls("work", "fetch", "fetch"), _prompt],
    ],
    "asking-coder": [[_charges, _goes_on, _prompt], [_goes_on, _draws, _charges, _prompt]],
    "careful-coder": [[_loops, _transfers, _goes_on, _says("careful")]],
}
