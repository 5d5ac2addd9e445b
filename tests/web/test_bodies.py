"""Large bodies: one that takes long to parse is refused, and blocks no other request."""

import base64
import io
import json
import os
import re
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import PIL.Image
import psutil
import pytest

from tests.support.histories import memory_of
from tests.support.owners import ADA, BOB, SECOND, create_as, owner_line, request_as
from tests.support.problems import answer_on, connected, problem
from tests.support.service import PATIENCE_S, PLAIN, Gate, Service, write_private
from tests.support.stopwatch import Stopwatch
from tests.support.tiers import mostly_deep
from tests.support.transfer import reader_of

LONGEST_PROBE_S = 1.0
MANY = 300_000
JSON = {"Content-Type": "application/json"}
MESSAGE = json.dumps([{"say": "hi"}])
BODIES: dict[str, tuple[str, str, Callable[[], bytes]]] = {  # made by their tests: all together have 150 MB
    "lists in additional_args": (
        *("POST", "/turn"),
        lambda: b'{"message":"x","additional_args":{"a":[' + b",".join([b"[1,2,3]"] * 300_000) + b"]}}",
    ),
    "keys": ("POST", "/turn", lambda: json.dumps(keys(200_000)).encode()),
    "keys in metadata": (
        "PATCH",
        "/conversations/c",
        lambda: b'{"metadata":' + json.dumps(keys(200_000)).encode() + b"}",
    ),
    "rules": ("POST", "/conversations", lambda: b'{"policy":[' + b",".join([b'{"a":1}'] * 300_000) + b"]}"),
    "long numbers": ("POST", "/turn", lambda: b'{"additional_args":{"a":[' + b",".join([b"7" * 4300] * 4000) + b"]}}"),
    "one long number": ("POST", "/turn", lambda: b"7" * 19_000_000),
    "escapes": ("POST", "/turn", lambda: b'{"message":"' + rb"\\" * 9_000_000 + b'"}'),
    "quotation marks": ("POST", "/turn", lambda: b'{"message":"' + rb"\"" * 9_000_000 + b'"}'),
    "wide characters": ("POST", "/turn", lambda: b'{"message":"' + "😀".encode() * 4_500_000 + b'"}'),
    "blanks": ("POST", "/conversations", lambda: b'{"id":' + b" " * 19_000_000 + b'"a"}'),
}


@contextmanager
def probed(service: Service) -> Iterator[list[float]]:
    """Ask for /livez all the time. Yields the times that the answers took."""
    took: list[float] = []
    started, done = threading.Event(), threading.Event()

    def probe() -> None:
        with httpx2.Client(base_url=service.client.base_url, timeout=PATIENCE_S) as client, Stopwatch() as watch:
            while not done.is_set():
                watch.restart()
                assert client.get("/livez").status_code == 200
                took.append(watch.s)
                started.set()
                done.wait(0.005)

    with ThreadPoolExecutor(1) as pool:
        probing = pool.submit(probe)
        try:
            assert started.wait(PATIENCE_S)
            yield took
        finally:
            done.set()
        probing.result()
    took.sort()


@pytest.mark.parametrize("senders", mostly_deep([1, 6], fast=[1]))
@pytest.mark.parametrize("case", BODIES)
def test_bodies_that_parse_slowly_are_refused_and_block_no_probe(service: Service, case: str, senders: int) -> None:
    method, path, make = BODIES[case]
    body = make()
    service.post("/conversations", id="c")

    def send(_number: int) -> None:
        problem(service.client.request(method, path, content=body, headers=JSON), 413, "too_large")

    with probed(service) as took, ThreadPoolExecutor(senders) as pool:
        assert len([*pool.map(send, range(senders))]) == senders
    assert senders == 1 or took[int(len(took) * 0.99)] < LONGEST_PROBE_S, took[-5:]


@contextmanager
def takes_little_memory(service: Service) -> Iterator[None]:
    process = psutil.Process(service.process.pid)
    files = Path(f"/proc/{process.pid}")
    (files / "clear_refs").write_text("5")  # the peak begins anew
    before = process.memory_info().rss
    yield
    peak = int(re.findall(r"VmHWM:\s+(\d+) kB", (files / "status").read_text())[0]) * 1024
    assert peak - before < 100 * 1024 * 1024


def keys(count: int) -> dict[str, object]:
    return {f"k{number}": 1 for number in range(count)}


def cpu_s(service: Service) -> float:
    return sum(psutil.Process(service.process.pid).cpu_times()[:2])


WRONG: dict[str, Callable[[], dict[str, object]]] = {
    "turns without members": lambda: {"turns": [{}] * MANY},
    "turns that are numbers": lambda: {"turns": [1] * MANY},
    "a turn of many members": lambda: {"turns": [keys(90_000)]},
    "names of tools": lambda: {"approve": [1] * MANY},
    "members": lambda: keys(90_000),
    "members of a rule": lambda: {"policy": keys(90_000)},
    "files": lambda: {"workspace": keys(90_000)},
    "rollbacks": lambda: {"rollbacks": [["a", "b"]] * 1000},
    "numbers in a turn": lambda: {"turns": [{"additional_args": {"v": [*range(2_000_000)]}}]},
    "members of a variable": lambda: {"variables": {"": {"code": {"v": keys(3 * MANY)}}}},
}
FAST = {"numbers in a turn", "a turn of many members", "members of a variable"}


@pytest.mark.parametrize("case", mostly_deep(WRONG, fast=FAST))
def test_a_document_with_many_faults_costs_little_and_names_ten_at_most(service: Service, case: str) -> None:
    document = json.dumps({"format": "smolsessions/conversation", "version": 1, **WRONG[case]()}).encode()
    before = cpu_s(service)
    with probed(service) as took, takes_little_memory(service):
        answer = service.client.post("/imports", content=document, headers=JSON)
    if case == "members of a variable":
        problem(answer, 413, "too_large")
    else:
        assert 1 <= len(problem(answer, 422, "invalid_request")["errors"]) <= 10
    assert cpu_s(service) - before < 4
    assert took[-1] < LONGEST_PROBE_S, took[-5:]


def test_large_imports_run_one_after_the_other_and_block_no_probe_and_no_small_one(tmp_path: Path) -> None:
    keys = write_private(tmp_path / "keys", owner_line("ada", ADA) + owner_line("bob", BOB) + owner_line("eve", SECOND))
    whole = memory_of(1) | {"steps": [{"type": "task", "turn": 1, "task": "x" * 120}] * 30_000}

    def send(key: str, document: object) -> None:
        made = request_as(service, key, "POST", "/imports", document)
        assert made.status_code == 201, made.text

    with Service(tmp_path / "imports", PLAIN | {"API_KEYS_FILE": str(keys)}) as service, ThreadPoolExecutor(2) as pool:
        with probed(service) as took:
            large = {pool.submit(send, key, whole) for key in (ADA, BOB)}
            reader_of(service)
            send(SECOND, memory_of(1))
            assert not any(each.done() for each in large)
            _, rest = wait(large, return_when=FIRST_COMPLETED)
            with pytest.raises(TimeoutError):
                next(iter(rest)).result(0.5)
        for each in large:
            each.result()
    assert took[-1] < LONGEST_PROBE_S, took[-5:]


def test_a_large_image_passes_beside_a_text_full_of_commas(service: Service) -> None:
    file = io.BytesIO()
    PIL.Image.frombytes("RGB", (1100, 1100), os.urandom(1100 * 1100 * 3)).save(file, "PNG", compress_level=0)
    image = base64.b64encode(file.getvalue()).decode()
    assert len(image) > 4_500_000  # more than a body may hold beside images
    message = json.dumps([{"say": "hi", "note": ',[{\\"' * 9_000}])
    for text in (image, f"data:image/png;base64,{image}"):
        turn = service.post("/turn", message=message, agent="scripted", images=[text])
        assert turn.status_code == 200, turn.text[:500]
    escaped = json.dumps({"message": MESSAGE, "agent": "scripted", "images": [image]}).replace("/", "\\/")
    turn = service.client.post("/turn", content=escaped, headers=JSON)
    assert turn.status_code == 200, turn.text[:500]


def test_additional_args_have_a_bound_of_values_and_one_of_bytes(service: Service) -> None:
    def send(args: object) -> httpx2.Response:
        return service.post("/turn", message=MESSAGE, agent="scripted", additional_args={"a": args})

    assert send([123_456_789] * 9_900).status_code == 200
    problem(send([123_456_789] * 10_100), 413, "too_large")
    assert send("word, " * 170_000).status_code == 200
    problem(send("word, " * 180_000), 413, "too_large")
    assert send([int("7" * 4000)] * 60).status_code == 200
    assert "outside strings" in problem(send([int("7" * 4000)] * 70), 413, "too_large")["detail"]
    assert "quotation marks" in problem(send('"' * 210_000), 413, "too_large")["detail"]


def test_bodies_that_are_held_have_a_budget_for_each_owner_and_one_for_all(tmp_path: Path) -> None:
    """With the largest body of 1 MiB, a process holds 12 MiB and 6 MiB of one owner."""
    keys = tmp_path / "keys"
    keys.write_text("".join(owner_line(owner, f"{owner}-0123456789") for owner in ("ada", "bob", "eve")))
    keys.chmod(0o600)
    body = b'{"metadata": {}' + b" " * 1_000_000

    def half(owner: str) -> socket.socket:
        fields = b"Authorization: Bearer %b-0123456789\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        head = b"POST /conversations HTTP/1.1\r\nHost: localhost\r\n" + fields % (owner.encode(), len(body) + 1)
        return stack.enter_context(connected(service, head + b"\r\n" + body))

    def refused(held: list[socket.socket]) -> None:
        """Check that one of these is refused, and take it away."""
        found, _, _ = select.select(held, [], [], PATIENCE_S)
        held.remove(found[0])
        response, said = answer_on(found[0])
        assert (response.status, json.loads(said)["code"], response.headers["retry-after"]) == (503, "overloaded", "5")
        assert not select.select(held, [], [], 0.1)[0]

    settings = PLAIN | {"MAX_BODY_BYTES": "1048576", "RECEIVE_TIMEOUT_S": "120", "API_KEYS_FILE": str(keys)}
    with Service(tmp_path / "held", settings) as service, ExitStack() as stack:
        held = [half("ada") for _ in range(7)]
        refused(held)
        held += [half("bob") for _ in range(6)]
        assert create_as(service, "eve-0123456789")  # a small one has room
        held.append(half("eve"))
        refused(held)
        for connection in held:
            connection.sendall(b"}")
            assert answer_on(connection)[0].status == 201
        again = half("ada")
        again.sendall(b"}")
        assert answer_on(again)[0].status == 201


@pytest.mark.parametrize("query", ["", "?until=waiting&on_disconnect=cancel"])
@pytest.mark.parametrize("approve", [[], ["wait_for"]])
def test_a_turn_that_is_waited_for_holds_no_body(tmp_path: Path, query: str, approve: list[str]) -> None:
    gates = [Gate(tmp_path / f"gate{number}") for number in range(7)]

    def ask(gate: Gate) -> None:
        message = json.dumps([gate.script, {"say": "hi"}])
        path, body = "/turn", dict[str, Any](message=message, agent="scripted", approve=approve)
        if approve:
            turn = service.post("/turn", **body).json()
            path = f"/conversations/{turn['conversation_id']}/turns/1/answers"
            body = {"answers": [{"request_id": turn["requests"][0]["request_id"], "decision": "approve"}]}
        content = json.dumps(body).encode() + b" " * 1_000_000
        ended = service.client.post(f"{path}{query}", content=content, headers=JSON)
        assert ended.status_code == 200, ended.text

    settings = PLAIN | {"MAX_BODY_BYTES": "1048576"}  # six of these bodies may be held at once
    with Service(tmp_path / "waiting", settings) as service, ThreadPoolExecutor(len(gates)) as pool:
        asked = []
        try:
            for gate in gates:
                asked.append(pool.submit(ask, gate))
                gate.reached()
        finally:
            for gate in gates:
                gate.open()
        for turn in asked:
            turn.result()
