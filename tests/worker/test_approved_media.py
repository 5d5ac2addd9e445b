"""Images and files among the arguments of a call that needs an approval: shown by link and hash, and used as shown."""

import hashlib
import io
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import PIL.Image
import pytest

from tests.support.answering import APPROVE, answer, answering, ask, asking_service, decisions, observed, read, sent
from tests.support.service import Service, shared_service
from tests.support.stopwatch import Stopwatch
from tests.support.streaming import Event, log_of
from tests.support.turns import DONE

pytestmark = pytest.mark.timeout(120)
DRAW = [{"call": [["picture", {}]]}, {"call": [["report", {}]]}]
service = shared_service(asking_service, MAX_WARM_MB="0")


def fetched(service: Service, shown: Event) -> bytes:
    response = service.client.get(shown["url"])
    assert response.status_code == 200, response.text
    assert hashlib.sha256(response.content).hexdigest() == shown["sha256"]
    return response.content


def pixels(data: bytes) -> str:
    return hashlib.sha256(PIL.Image.open(io.BytesIO(data)).tobytes()).hexdigest()


def test_an_image_and_a_file_are_shown_by_link_and_hash_and_used_as_shown(service: Service) -> None:
    turn = ask(service, *DRAW, {"call": [["post", {"to": "ann", "media": "image.png"}]]}, DONE, agent="poster")
    (request,) = turn["requests"]
    assert request["arguments"] == {"to": "ann", "media": "[image 4x4]"}
    (image,) = request["images"]
    assert [image[name] for name in ("pointer", "width", "height")] == ["/media", 4, 4]
    shown = pixels(fetched(service, image))
    assert read(service, turn)["requests"] == turn["requests"]
    event = next(frame.data for frame in log_of(service, turn, until="waiting") if frame.event == "turn.waiting")
    assert event["requests"] == turn["requests"]
    assert answer(service, turn, APPROVE)["status"] == "finished"
    assert sent(service)[-1:] == [f"ann: {shown}"]

    turn = ask(service, *DRAW, {"call": [["post", {"to": "bob", "media": "report.csv"}]]}, DONE, agent="poster")
    (request,) = turn["requests"]
    (it,) = request["files"]
    assert [it[n] for n in ("pointer", "name", "media_type", "size_bytes")] == ["/media", "report.csv", "text/csv", 8]
    assert fetched(service, it) == b"a;b\n1;2\n"
    assert answer(service, turn, APPROVE)["status"] == "finished"
    assert sent(service)[-1:] == [f"bob: {it['sha256']}"]


def test_a_change_of_other_arguments_keeps_the_images_that_code_made(service: Service) -> None:
    code = "from PIL import Image\nred = Image.new('RGB', (3, 2), 'red')\npost('eve', ['first', [red], picture()])"
    turn = ask(service, {"code": code}, DONE, agent="code-poster")
    (request,) = turn["requests"]
    assert request["arguments"]["media"] == ["first", ["[image 3x2]"], "[image 4x4]"]
    assert [image["pointer"] for image in request["images"]] == ["/media/1/0", "/media/2"]
    assert PIL.Image.open(io.BytesIO(fetched(service, request["images"][0]))).getpixel((0, 0)) == (255, 0, 0)
    changed = {"to": "joe", "media": ["second", ["[image 3x2]"], "[image 4x4]"]}
    ended = answer(service, turn, APPROVE | {"arguments": changed})
    assert decisions(ended) == [("picture", None), ("post", "edited")]
    red, blue = [pixels(fetched(service, image)) for image in request["images"]]
    assert sent(service)[-3:] == ["joe: second", f"joe: [{red}]", f"joe: {blue}"]


def test_a_change_cannot_move_replace_or_drop_an_image(service: Service) -> None:
    code = (
        "from PIL import Image\n"
        "a, b, c = [Image.new('RGB', (width, 2), colour) for width, colour in [(3, 'red'), (3, 'blue'), (5, 'red')]]\n"
        "post('eve', [a, b, c, {1: c, 2: 'x'}])"
    )
    turn = ask(service, {"code": code}, DONE, agent="code-poster")
    small, large = "[image 3x2]", "[image 5x2]"
    keyed = {"1": large, "2": "x"}
    assert turn["requests"][0]["arguments"]["media"] == [small, small, large, keyed]
    assert [image["pointer"] for image in turn["requests"][0]["images"]][3:] == ["/media/3/1"]
    for media, at in (
        ([large, small, small, keyed], "/answers/0/arguments/media/0"),
        ([small, large, keyed], "/answers/0/arguments/media/1"),
        ([small, "none", large, keyed], "/answers/0/arguments/media/1"),
        ([small, small, large, {"2": "x"}], "/answers/0/arguments/media/3/1"),
        (small, "/answers/0/arguments/media/0"),
    ):
        refused = answering(service, turn, APPROVE | {"arguments": {"to": "joe", "media": media}})
        assert refused.status_code == 422, refused.text
        assert at in [error["pointer"] for error in refused.json()["errors"]]
    changed = [small, small, large, {"1": large, "2": "y"}]
    assert answer(service, turn, APPROVE | {"arguments": {"to": "joe", "media": changed}})["status"] == "finished"
    red, blue, wide, _ = [pixels(fetched(service, image)) for image in turn["requests"][0]["images"]]
    *shown, last = sent(service)[-4:]
    assert shown == [f"joe: {red}", f"joe: {blue}", f"joe: {wide}"]
    assert last.startswith("joe: {1: <PIL.Image.Image")


UNSEEN = {
    **dict.fromkeys(
        ("deque([picture()])", "{1: 'benign', '1': 'evil'}", "[0] * 100_001 + ['evil']", "10**2500 + 1"),
        "needs an approval, and its arguments hold",
    ),
    "[picture()] * 17": "more than 16 images and files",
}


@pytest.mark.parametrize("media", UNSEEN)
def test_what_the_person_could_not_see_is_not_asked(service: Service, media: str) -> None:
    code = f"from collections import deque\npost('eve', {media})"
    turn = service.post(
        "/turn",
        agent="code-poster",
        message=json.dumps([{"code": code}, {"call": [["final_answer", {"answer": "ok"}]]}]),
    ).json()
    assert turn["status"] == "finished", turn
    assert UNSEEN[media] in "".join(observed(service, turn))


@pytest.mark.parametrize("side", [2, 700])
def test_other_pixels_in_a_replay_are_asked_anew(service: Service, side: int) -> None:
    code = (
        "import sqlite3\nfrom PIL import Image\n"
        "red = sqlite3.connect(':memory:').execute('select abs(random()) % 250').fetchone()[0]\n"
        f"post('eve', Image.new('RGB', ({side}, {side}), (red, 0, 0)))"
    )
    turn = ask(service, {"code": code}, DONE, agent="code-poster")
    seen = {turn["requests"][0]["images"][0]["sha256"]}
    before = len(sent(service))
    turn = answer(service, turn, APPROVE, status=202)
    (request,) = turn["requests"]
    assert request["replaces"]
    assert request["images"][0]["sha256"] not in seen
    assert len(sent(service)) == before
    service.client.post(f"/conversations/{turn['conversation_id']}/turns/1/cancel", headers={"Prefer": "wait=20"})


def test_arguments_that_take_long_to_check_delay_no_other_request(service: Service) -> None:
    code = "from PIL import Image\npost('eve', [Image.new('RGB', (3, 2))])"
    turn = ask(service, {"code": code}, DONE, agent="code-poster")
    deep: list[Any] = [""] * 20_000
    for _ in range(120):
        deep = [deep]
    changed = APPROVE | {"arguments": {"to": "joe", "media": ["[image 3x2]", deep]}}
    slowest_s = 0.0
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answering, service, turn, changed, Prefer="respond-async")
        while not answered.done():
            with Stopwatch() as watch:
                assert service.client.get("/livez").status_code == 200
            slowest_s = max(slowest_s, watch.s)
    assert answered.result().status_code in {200, 202}, answered.result().text
    assert slowest_s < 2


def test_a_destroying_prune_deletes_what_was_shown(service: Service) -> None:
    code = "from PIL import Image\npost('eve', Image.new('RGB', (5, 5), 'blue'))"
    turn = ask(service, {"code": code}, DONE, agent="code-poster")
    url = turn["requests"][0]["images"][0]["url"]
    assert answer(service, turn, APPROVE)["status"] == "finished"
    assert service.client.get(url).status_code == 200
    at = f"/conversations/{turn['conversation_id']}"
    pruned = service.client.post(f"{at}/prune", json={"policy": {"name": "keep_last_n_steps", "n": 1}, "destroy": True})
    assert pruned.status_code == 200, pruned.text
    assert service.client.get(url).status_code == 404
