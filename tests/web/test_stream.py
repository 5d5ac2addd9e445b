"""One log, many readers: live, repeated, cut, slow, on another process, from another origin, at shutdown."""

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.data import table
from tests.support.owners import ADA, BOB, owner_line
from tests.support.problems import problem
from tests.support.service import PLAIN, Gate, Service, wait_until, write_private
from tests.support.streaming import EVENTS, FINAL, Event, Frame, check_numbers, gone, log_of, place, posting, watching
from tests.support.turns import DONE, ECHO, ENDLESS, held_turn, submit_turn, wait_for_end

PAGE = "http://localhost:5173"
STREAMED = PLAIN | {
    "AGENTS": "scripted=tests.support.agents:make_scripted,streamed=tests.support.streaming:make_streamed"
}
RANKS: Any = table("stream ranks")


@pytest.fixture(scope="module")
def strict(folder: Path) -> Iterator[Service]:
    """Yield a service with owners, a page of another origin, and short timeouts for readers and logs."""
    keys = write_private(folder / "keys", owner_line("ada", ADA) + owner_line("eve", BOB))
    settings = STREAMED | {
        "API_KEYS_FILE": str(keys),
        "CORS_ORIGINS": f"https://page.example, {PAGE}",
        "LOG_TTL_S": "1",
        "SEND_TIMEOUT_S": "4",
    }
    with Service(folder, settings) as running:
        running.client.headers["Authorization"] = f"Bearer {ADA}"
        yield running


@pytest.fixture(scope="module")
def ended(service: Service) -> Event:
    return service.play(ECHO, DONE)


def test_a_posted_turn_streams_all_events_from_first_to_last(service: Service) -> None:
    made = service.post("/conversations", agent="streamed").json()["id"]
    with posting(service, ECHO, DONE, conversation_id=made) as stream:
        frames = stream.rest()
    assert kinds(frames) == [
        "turn.queued",
        "turn.started",
        *("step.started", "message.delta", "tool.call", "tool.result", "step.finished"),
        *("step.started", "message.delta", "tool.call", "tool.result", "step.finished"),
        "turn.finished",
    ]
    check_numbers(frames)
    turn = frames[-1].data["result"]
    assert turn["reply"] == "done"
    assert turn == service.get(place(turn))
    headers = stream.response.headers
    assert headers["content-type"].partition(";")[0] == "text/event-stream"
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"
    assert headers["location"] == place(turn)
    assert "content-encoding" not in headers
    assert b"\r" not in stream.raw
    assert stream.raw == b"".join(frame.raw for frame in frames)


def test_the_answer_has_the_type_that_the_caller_ranks_highest(service: Service) -> None:
    asked = {"agent": "scripted", "message": json.dumps([DONE])}
    for is_stream, accepted in RANKS.items():
        for accept in accepted.split("|"):
            response = service.client.post("/turn", json=asked, headers={"Accept": accept})
            kind = response.headers["content-type"].partition(";")[0]
            wanted = "text/event-stream" if is_stream else "application/json"
            assert (response.status_code, kind) == (200, wanted), accept
            assert b'"reply":"done"' in response.content


def test_a_comment_is_sent_in_a_long_silence(service: Service, gate: Gate) -> None:
    turn = submit_turn(service, gate.script, DONE)
    with service.client.stream("GET", place(turn, "/events"), params={"after": 9999}) as response:
        assert next(response.iter_raw()) == b": ping\n\n"
        gate.open()


def test_internal_tools_are_named_for_those_who_ask(service: Service, gate: Gate) -> None:
    turn, asked = submit_turn(service, gate.script, DONE), {"include_internal_tools": "true"}
    with watching(service, turn) as plain, watching(service, turn, **asked) as full:
        plain.until("tool.call")
        full.until("tool.call")
        gate.open()
        finals = [stream.rest()[-1].data["result"] for stream in (plain, full)]
    assert [final["tool_call_names"] for final in finals] == [["wait_for"], ["wait_for", "final_answer"]]
    (listed,) = service.get(place(turn).rpartition("/")[0], **asked)["items"]
    assert listed == service.get(place(turn), **asked) == finals[1]
    assert service.client.post(place(turn, "/cancel"), params=asked).json() == finals[1]


def test_a_reader_gets_what_follows_its_cursor(service: Service, ended: Event) -> None:
    whole = log_of(service, ended)
    for cursor in ("", "0", "1", "4", "006"):
        expected = bytes_of(whole[int(cursor or 0) :])
        assert bytes_of(log_of(service, ended, cursor)) == expected
        assert bytes_of(log_of(service, ended, after=cursor)) == expected


def test_the_header_wins_over_the_query_and_the_final_event_gets_204(service: Service, ended: Event) -> None:
    whole = log_of(service, ended)
    assert bytes_of(log_of(service, ended, 3, after=6)) == bytes_of(whole[3:])
    assert bytes_of(log_of(service, ended, 6, after=3)) == bytes_of(whole[6:])
    assert ask(service, ended, last=len(whole), after=0).status_code == 204
    assert bytes_of(log_of(service, ended, 0, after=len(whole))) == bytes_of(whole)
    assert bytes_of(log_of(service, ended, whole[-1].id - 1)) == whole[-1].raw
    for cursor in (whole[-1].id, whole[-1].id + 1, 999_999):
        for response in (ask(service, ended, last=cursor), ask(service, ended, after=cursor)):
            assert (response.status_code, response.content) == (204, b"")


def test_a_cursor_beyond_the_end_of_a_running_turn_waits_for_what_follows_it(service: Service, gate: Gate) -> None:
    turn = submit_turn(service, gate.script, ECHO, DONE)
    gate.reached()
    with watching(service, turn) as plain:
        reached = plain.until("tool.call")["seq"]
        with watching(service, turn, reached + 5) as ahead, watching(service, turn, 9999) as beyond:
            gate.open()
            expected = plain.rest()
            assert bytes_of(ahead.rest()) == bytes_of([frame for frame in expected if frame.id > reached + 5])
            assert beyond.rest() == []  # the stream ends with the turn and has no event
    assert ask(service, turn, last=9999).status_code == 204


def test_an_invalid_cursor_is_refused_and_named(service: Service, ended: Event) -> None:
    for cursor in ("abc", "-1", "1.5", "+1", "1e3", "0x1", "1 2", "1-0", "½", "٣", "1" * 16):
        for where, name, response in (
            ("header", "Last-Event-ID", ask(service, ended, last=cursor.encode())),
            ("query", "after", ask(service, ended, after=cursor)),
            ("header", "Last-Event-ID", ask(service, ended, last=cursor.encode(), after=1)),
        ):
            found = problem(response, 422, "invalid_request")["errors"][0]
            assert (found["in"], found["parameter"]) == (where, name)


def test_a_turn_whose_log_has_expired_still_answers_with_its_final_event(strict: Service) -> None:
    with posting(strict, ECHO, DONE) as stream:
        final = stream.rest()[-1]
    turn = final.data["result"]
    wait_until(lambda: len(log_of(strict, turn)) == 1)
    for cursor in (None, 0, 3, final.id - 1):
        assert bytes_of(log_of(strict, turn, cursor)) == final.raw
    assert ask(strict, turn, last=final.id).status_code == 204
    problem(ask(strict, turn, last=b"abc"), 422, "invalid_request")


def test_a_refusal_is_a_problem_and_no_broken_stream(strict: Service, gate: Gate) -> None:
    turn = strict.play(DONE)
    with held_turn(strict, gate.path, conversation_id=turn["conversation_id"]):
        asked = {"message": "x", "conversation_id": turn["conversation_id"]}
        problem(strict.client.post("/turn", json=asked, headers=EVENTS), 409, "busy")
    turn = strict.play(DONE)
    problem(ask(strict, turn | {"turn": 2}), 404, "turn_not_found")
    problem(ask(strict, turn | {"conversation_id": "nobody"}), 404, "conversation_not_found")
    problem(strict.client.post("/turn", json={"message": "x", "agent": "nobody"}, headers=EVENTS), 422, "unknown_agent")
    problem(strict.client.post("/turn", json={"message": ""}, headers=EVENTS), 422, "invalid_request")
    assert len(log_of(strict, turn)) >= 1
    for key, status, code in ((BOB, 404, "conversation_not_found"), ("none", 401, "unauthorized")):
        headers = EVENTS | {"Authorization": f"Bearer {key}"}
        problem(strict.client.get(place(turn, "/events"), headers=headers), status, code)
        problem(strict.client.get(place(turn, "/events"), headers=headers | {"Last-Event-ID": "99"}), status, code)


def test_every_reader_sees_every_event_once_also_after_cuts_and_on_another_process(
    replicas: tuple[Service, Service], gate: Gate
) -> None:
    here, there = replicas
    # Pieces of two kinds in turn are not joined: each is an event of its own.
    woven = [piece for number in range(200) for piece in (f"t{number} ", [0, "x"])]
    pieces = [[0, '{"text": "', "echo"], {"gate": str(gate.path)}, *woven, [0, '"}']]
    turn = submit_turn(here, {"stream": pieces, "pace_s": 0.001}, DONE, agent="streamed")
    gate.reached()
    with watching(here, turn) as plain, watching(there, turn) as remote, ThreadPoolExecutor(8) as pool:
        plain.until("step.started")
        remote.until("step.started")
        cut = [pool.submit(read_in_pieces, *who) for who in ((here, turn, 3), (here, turn, 50), (there, turn, 11))]
        live = [pool.submit(stream.rest) for stream in (plain, remote)]
        gate.open()
        for job in live:
            job.result()
        everything = bytes_of(plain.seen)
        assert bytes_of(remote.seen) == everything
        for job in cut:
            assert bytes_of(job.result()) == everything
    check_numbers(plain.seen)
    assert len(plain.seen) > 400
    for service in replicas:  # the second one does not know the agent
        assert bytes_of(log_of(service, turn)) == everything
        assert bytes_of(log_of(service, turn, 5)) == bytes_of(plain.seen[5:])
        assert ask(service, turn, last=plain.seen[-1].id).status_code == 204


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_disconnect_does_not_affect_the_turn(service: Service, gate: Gate, method: str) -> None:
    script = [{"stream": ["first ", {"gate": str(gate.path)}, "second", [0, '{"answer": "end"}', "final_answer"]]}]
    with posting(service, *script) as poster:
        turn = poster.until("message.delta")
        with watching(service, turn) as reader:
            reader.until("message.delta")
            leaving, staying = (poster, reader) if method == "POST" else (reader, poster)
            leaving.response.close()
            wait_until(lambda: gone(service, leaving.port))
            gate.open()
            assert staying.rest()[-1].data["result"]["reply"] == "end"
    check_numbers(staying.seen)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_reader_may_ask_that_his_leaving_stops_the_turn(service: Service, method: str) -> None:
    query = {"on_disconnect": "cancel"}
    with posting(service, ECHO, ENDLESS, query=query if method == "POST" else None) as poster:
        turn = poster.until("message.delta", step=2)
        if method == "GET":
            with watching(service, turn, **query) as reader:
                reader.until("message.delta", step=2)
        else:
            poster.response.close()
        ended = wait_for_end(service, turn)
    assert (ended["status"], ended["step_count"]) == ("cancelled", 1)
    assert min(filter(None, ended["usage"].values())) > 1  # estimated: the stream had not reported any
    assert service.follow_up(ended, DONE)["reply"] == "done"


def test_a_stopped_reader_is_dropped_and_delays_no_other(strict: Service, service: Service, gate: Gate) -> None:
    """The second service waits longer for its readers than the flood lasts."""
    flood = [piece for _ in range(60) for piece in ({"large": 200_000}, [0, " "])]
    for each, is_dropped, own in ((strict, True, gate), (service, False, Gate(gate.path.with_name("other")))):
        end = Gate(own.path.with_name(f"{own.path.name}.end"))
        pieces = ["first", {"gate": str(own.path)}, [0, "", "final_answer"], *flood, {"gate": str(end.path)}]
        with posting(each, {"stream": [*pieces, [0, '{"answer": "end"}']]}) as stream:
            turn = stream.until("message.delta")
            with stopped_reader(each, turn) as port:
                own.open()
                seen = 0
                while seen < 60 * 200_000:
                    seen += len(next(stream).data.get("text", ""))
                # A plain close would wait until the reader has read its buffer: the connection must be aborted.
                if is_dropped:
                    wait_until(lambda: gone(strict, port))
                else:
                    assert not gone(service, port)
                end.open()
                assert stream.rest()[-1].data["result"]["reply"] == "end"
    assert "defect" not in strict.log()


@contextmanager
def stopped_reader(service: Service, turn: Event) -> Iterator[int]:
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", service.client.base_url.port))
        head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {ADA}"
        slow.sendall(f"GET {place(turn, '/events')} HTTP/1.1\r\n{head}\r\n\r\n".encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        yield slow.getsockname()[1]


def test_streams_end_at_shutdown_and_their_readers_go_on_with_a_restarted_server(tmp_path: Path) -> None:
    service = Service(tmp_path, STREAMED | {"DRAIN_S": "0.2"})
    with service:
        with posting(service, ECHO, ENDLESS, query={"on_disconnect": "cancel"}) as poster:
            turn = poster.until("message.delta", step=2)
            with watching(service, turn) as reader:
                reader.until("message.delta", step=2)
                service.process.send_signal(signal.SIGTERM)
                poster.rest()
                reader.rest()
        assert service.stop() == 0
    assert FINAL.isdisjoint([*kinds(poster.seen), *kinds(reader.seen)])
    with service:
        with watching(service, turn, reader.seen[-1].id) as again:
            again.until("message.restarted", call_id="2.m1")
            again.until("message.delta", step=2)
            service.post(place(turn, "/cancel"))
            again.rest()
        whole = log_of(service, turn)
        check_numbers(whole)
        for stream in (poster, reader):
            assert bytes_of(whole).startswith(bytes_of(stream.seen))
        assert bytes_of(whole) == bytes_of([*reader.seen, *again.seen])
        ended = whole[-1].data["result"]
        assert (ended["status"], ended["step_count"], ended["attempts"]) == ("cancelled", 1, 2)
        assert service.follow_up(turn | {"agent": {"name": "streamed"}}, DONE)["reply"] == "done"


def test_a_page_of_an_allowed_origin_may_call(strict: Service) -> None:
    sent = {"authorization", "content-type", "idempotency-key", "if-match", "last-event-id", "prefer", "x-request-id"}
    for path in ("/turn", "/conversations/x/turns/1/events"):
        for method in ("GET", "POST", "PATCH", "DELETE"):
            asks = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": ", ".join(sent)}
            response = strict.client.request("OPTIONS", path, headers=asks | {"Origin": PAGE, "Authorization": ""})
            assert response.status_code == 200, response.text
            assert response.headers["access-control-allow-origin"] == PAGE
            assert method in response.headers["access-control-allow-methods"]
            assert words(response, "access-control-allow-headers") >= sent
    with posting(strict, DONE) as plain:
        turn = plain.rest()[-1].data["result"]
    for response in (
        ask(strict, turn, Origin=PAGE),
        ask(strict, turn | {"turn": 9}, Origin=PAGE),
        strict.client.get("/agents", headers={"Origin": PAGE, "Authorization": ""}),
        strict.client.post("/turn", content=b"{", headers={"Origin": PAGE, "Content-Type": "application/json"}),
        strict.client.post("/turn", json={"message": "x"}, headers={"Origin": PAGE, "Content-Type": "text/plain"}),
    ):
        assert response.headers["access-control-allow-origin"] == PAGE
        exposed = {"etag", "location", "retry-after", "preference-applied", "x-request-id"}
        assert words(response, "access-control-expose-headers") == exposed
        assert "origin" in words(response, "vary")
    assert "access-control-allow-origin" not in plain.response.headers


def words(response: httpx2.Response, name: str) -> set[str]:
    return {word.strip() for word in response.headers[name].lower().split(",")}


def test_a_page_of_another_origin_may_not(strict: Service, service: Service) -> None:
    origins = ("http://localhost:5174", "https://localhost:5173", "http://evil.example", "null")
    for each, origin in [*((strict, origin) for origin in origins), (service, PAGE)]:
        asks = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        for response in (
            each.client.request("OPTIONS", "/turn", headers=asks),
            each.client.get("/agents", headers={"Origin": origin}),
        ):
            assert response.status_code >= 400
            assert "access-control-allow-origin" not in response.headers


def ask(service: Service, turn: Event, last: Any = None, after: Any = None, **headers: str) -> httpx2.Response:
    cursor = {} if last is None else {b"Last-Event-ID": last if isinstance(last, bytes) else str(last).encode()}
    named: dict[Any, Any] = {name.encode(): value.encode() for name, value in (EVENTS | headers).items()}
    query = {} if after is None else {"after": str(after)}
    return service.client.get(place(turn, "/events"), params=query, headers=named | cursor)


def read_in_pieces(service: Service, turn: Event, every: int) -> list[Frame]:
    frames: list[Frame] = []
    while not frames or frames[-1].event not in FINAL:
        with watching(service, turn, frames[-1].id if frames else None) as stream:
            for _, frame in zip(range(every), stream, strict=False):
                frames.append(frame)
    assert ask(service, turn, last=frames[-1].id).status_code == 204
    return frames


def kinds(frames: list[Frame]) -> list[str]:
    """Return the types of events, with neighbouring pieces of text as one."""
    names = [frame.event for frame in frames]
    return [name for at, name in enumerate(names) if name != "message.delta" or names[at - 1 : at] != [name]]


def bytes_of(frames: list[Frame]) -> bytes:
    return b"".join(frame.raw for frame in frames)
