"""The rendered pods, started as they are declared: they serve, play, drain, hand over, and outlive their store."""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from smolsessions.settings import PREFIX
from smolsessions.store.connection.server_errors import RIGHTS
from tests.support.images import Image
from tests.support.manifests import Rendered, metrics_of
from tests.support.nodes import USER, Nodes, Running, StorePod, password_of
from tests.support.service import ROOT
from tests.support.waiting import PATIENCE_S, wait_until
from tests.topology.certificates import new_authority
from tests.topology.sentinels import Sentinels

pytestmark = pytest.mark.alone  # an image is built first, which keeps the disk busy

WELL = dict.fromkeys(("startup", "liveness", "readiness"), 200)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def store(rendered: Rendered, image: Image, tmp_path: Path, stack: ExitStack) -> StorePod:  # noqa: ARG001 - skips without
    store = StorePod(rendered["dev"], tmp_path, stack)
    store.start()
    return store


@pytest.fixture
def dev(rendered: Rendered, image: Image, tmp_path: Path, stack: ExitStack, store: StorePod) -> Nodes:
    return Nodes(rendered["dev"], image, tmp_path, rendered.key, stack, store.settings)


@pytest.fixture
def site(rendered: Rendered, image: Image, tmp_path: Path, stack: ExitStack) -> Nodes:
    """Return the site with the servers in its address: a primary, a replica, sentinels, TLS, a user of few rights."""
    overlay, authority = rendered["site"], new_authority(tmp_path / "authority")
    sentinels = stack.enter_context(Sentinels(tmp_path / "store", password="the-administrators", tls=authority.context))
    for node in sentinels.nodes:
        node.ask("ACL", "SETUSER", USER, "reset", "on", f">{password_of(overlay)}", *RIGHTS.split(), "+wait")
    places = sentinels.url().rpartition("@")[2]
    declared = overlay.pod("smolsessions-web").environment[f"{PREFIX}REDIS_URL"]
    assert declared.startswith(f"rediss+sentinel://{USER}@")
    here = {
        f"{PREFIX}REDIS_URL": f"rediss+sentinel://{USER}@{places}",
        f"{PREFIX}REDIS_CA_FILE": "/run/store-ca/ca.crt",
    }
    authority.ca_file.rename(authority.ca_file.with_name("ca.crt"))
    return Nodes(overlay, image, tmp_path, rendered.key, stack, here, {"/run/store-ca": tmp_path / "authority"})


@pytest.mark.parametrize("overlay", ["dev", "site"])
def test_pods_serve_and_play_and_pass_their_probes(
    overlay: str, request: pytest.FixtureRequest, rendered: Rendered
) -> None:
    nodes: Nodes = request.getfixturevalue(overlay)
    web, work = nodes.start("web"), nodes.start("work")
    for pod in (web, work):
        assert pod.probes() == WELL
        assert pod.container.is_healthy(nodes.image, pod.pod.user)
    for agent in ("demo", "demo-code"):
        turn = nodes.post(web, "What is 12 * 7?", agent=agent).json()
        assert (turn["reply"], turn["tool_call_names"]) == ("12 * 7 = 84.", ["calculator"])
    assert web.container.client.post("/turn", json={"message": "x"}).status_code == 401
    assert work.container.client.post("/turn", json={"message": "x"}, headers=nodes.headers).status_code == 404
    told = {name.partition("{")[0] for name in work.metrics}
    assert metrics_of(rendered["production"]) <= told
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    documented = set(re.findall(r"\bsmolsessions_[a-z_]+", page))
    assert {name for name in documented if not {name, f"{name}_count"} & told} == set()


def test_a_worker_that_is_told_to_end_hands_its_turn_over_within_its_grace(dev: Nodes) -> None:
    web, first, second = dev.start("web"), dev.start("work"), dev.start("work")
    where = dev.waiting(web, "gate")
    ending, other = (first, second) if first.is_busy else (second, first)
    since = ending.terminate()
    wait_until(lambda: ending.probes() == WELL | {"readiness": 503})
    dev.open("gate")
    ending.ends_in_time(since)
    turn = dev.ended(web, where)
    assert (turn["status"], turn["reply"], turn["attempts"]) == ("finished", "it went on", 2)
    assert [call["repeated"] for call in turn["tool_calls"]] == [False]
    assert other.probes() == WELL


def test_a_web_that_is_told_to_end_answers_who_waits_and_another_goes_on(dev: Nodes) -> None:
    first, second, _ = dev.start("web"), dev.start("web"), dev.start("work")
    where = dev.waiting(first, "gate")
    turns = where.rpartition("/")[0]
    asking = Asking(dev, first, turns.split("/")[2])
    wait_until(lambda: len(dev.get(second, turns)["items"]) == 2)
    first.ends_in_time(first.terminate())
    answer = asking.answer()
    assert (answer.status_code, answer.json()["status"]) == (202, "queued")
    dev.open("gate")
    assert dev.ended(second, where)["reply"] == "it went on"
    assert dev.ended(second, answer.headers["location"])["reply"] == "next"


class Asking:
    """A POST in a thread of its own that waits behind a conversation's running turn."""

    def __init__(self, nodes: Nodes, web: Running, conversation: str) -> None:
        self._answers: list[httpx2.Response] = []
        body = {"conversation_id": conversation, "agent": "scripted", "on_busy": "enqueue"}
        self._thread = threading.Thread(
            target=lambda: self._answers.append(nodes.post(web, '[{"say": "next"}]', **body)), daemon=True
        )
        self._thread.start()

    def answer(self) -> httpx2.Response:
        self._thread.join(PATIENCE_S)
        return self._answers[0]


def test_pods_that_lose_their_store_stay_and_go_on_when_it_is_back(dev: Nodes, store: StorePod) -> None:
    web, work = dev.start("web"), dev.start("work")
    first = dev.post(web, "What is 12 * 7?", agent="demo").json()
    store.stop()
    refused = dev.post(web, "What is 12 * 7?", agent="demo")
    assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
    assert refused.headers["retry-after"]
    assert [pod.probes() for pod in (web, work)] == [WELL, WELL]
    store.start()
    asked = {"conversation_id": str(first["conversation_id"])}
    wait_until(lambda: dev.post(web, "What did I ask first?", **asked).status_code == 200)
    listed = dev.get(web, f"/conversations/{first['conversation_id']}/turns")["items"]
    assert "12 * 7" in listed[-1]["reply"]
