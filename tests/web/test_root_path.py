"""A service below a prefix, behind a reverse proxy that removes the prefix from paths and behind one that does not."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx2
import pytest

from smolsessions import ApiError, AsyncClient, Client
from smolsessions.settings import OWN_PATHS, read_settings
from smolsessions.web.dialects import NEEDS
from tests.support.openapi import description
from tests.support.proxy import proxy
from tests.support.service import PATIENCE_S, PLAIN, Service, shared_service
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, ECHO, png

PREFIX = "/team/agents"
below = shared_service(PLAIN | {"ROOT_PATH": f"{PREFIX}/"})


@pytest.fixture(params=mostly_deep(["removed", "kept", "no proxy"], fast={"removed", "kept"}))
def address(below: Service, request: pytest.FixtureRequest) -> Iterator[str]:
    target = below.url
    if request.param == "no proxy":
        yield target + PREFIX
        return
    with proxy(target, PREFIX, strips=request.param == "removed") as address:
        yield address


def links_in(value: Any) -> set[str]:
    if isinstance(value, dict | list):
        return set().union(*map(links_in, value.values() if isinstance(value, dict) else value))
    return {value} if isinstance(value, str) and re.match(r"/[a-z]+/", value) else set()


def test_each_link_of_an_answer_leads_to_its_object(address: str) -> None:
    with httpx2.Client(timeout=PATIENCE_S) as client:
        made = client.post(f"{address}/conversations", json={"agent": "scripted"})
        at = urljoin(address, made.headers["Location"])
        assert client.get(at).json() == made.json()
        body = {"message": json.dumps([{"call": [["picture", {}]]}, {"say": "image.png"}]), "images": [png("blue")]}
        turn = client.post(f"{at}/turns", json=body)
        assert client.get(urljoin(address, turn.headers["Location"])).json() == turn.json()
        answers = [turn.json(), client.get(f"{at}/steps").json(), client.get(f"{at}/prompt").json()]
        answers += [client.get(f"{at}/nothing").json()]
        with client.stream("GET", f"{at}/turns/1/events") as stream:
            assert stream.headers["Location"] == turn.headers["Location"]
            answers += [json.loads(line[5:]) for line in stream.iter_lines() if line.startswith("data:")]
        found = links_in(answers)
        assert len(found) >= 3
        assert {urlsplit(link).path.startswith(f"{PREFIX}/") for link in found} == {True}
        assert {client.get(urljoin(address, link)).status_code for link in found} == {200}


def test_the_description_names_the_prefix_as_its_server(address: str) -> None:
    document = httpx2.get(f"{address}/openapi.json").json()
    written = description()
    assert document["servers"] == [{**written["servers"][0], "url": PREFIX}]
    assert document["paths"].keys() == written["paths"].keys()


async def test_the_clients_take_an_address_with_a_path(address: str) -> None:
    with Client(address) as client:
        turn = client.turn(json.dumps([ECHO, DONE]), agent="scripted")
        assert turn.reply == "done"
        events = list(client.stream(json.dumps([DONE]), conversation_id=turn.conversation_id))
        assert events[-1].type == "turn.finished"
        assert list(client.get_turn_events(turn.conversation_id, 2)) == events
        assert [each.turn for each in client.list_turns(turn.conversation_id)] == [1, 2]
        shown = client.turn(json.dumps([DONE]), agent="scripted", images=[png("red")])
        assert client.get_image(shown.conversation_id, shown.images[0].url.rpartition("/")[2])[:4] == b"\x89PNG"
        with pytest.raises(ApiError) as refused:
            client.get_conversation("nothing")
        assert refused.value.problem.type == f"{PREFIX}/docs/errors/conversation_not_found"
    async with AsyncClient(f"{address}/") as other:
        types = [event.type async for event in other.stream(json.dumps([DONE]), agent="scripted")]
    assert types[-1] == "turn.finished"


def test_other_prefixes_are_other_paths(below: Service) -> None:
    for path in (f"{PREFIX}-2/agents", f"/team{PREFIX}/agents", "/team/livez", f"{PREFIX}{PREFIX}/livez"):
        missed = below.client.get(path)
        assert (missed.status_code, f"{PREFIX}/docs lists" in missed.json()["detail"]) == (404, True)
    assert f"{PREFIX}/docs lists" in below.client.put(f"{PREFIX}/agents").json()["detail"]
    refused = below.client.get("/livez", headers={f"X-{number}": "1" for number in range(200)})  # before any route
    assert refused.json()["type"] == f"{PREFIX}/docs/errors/head_too_large"


def test_the_paths_of_the_service_cannot_begin_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    described = description()["paths"]
    assert {path.split("/")[1] for path in described} | {"docs", "page", "openapi.json"} | {*NEEDS} == OWN_PATHS
    for wrong in ("team", "/a//b", "/a b", "/a/..", "/./a", "/agents/v1", "/docs", "//host", "/a?b", "/ä"):
        monkeypatch.setenv("SMOLSESSIONS_ROOT_PATH", wrong)
        with pytest.raises(Exception, match="SMOLSESSIONS_ROOT_PATH"):
            read_settings()
    for right, read in {"/": "", "/a/": "/a", "/~a.b/c-d_e": "/~a.b/c-d_e", "/...": "/..."}.items():
        monkeypatch.setenv("SMOLSESSIONS_ROOT_PATH", right)
        assert read_settings().root_path == read
