"""Links to the images of a turn: those of the message, and those of the answer."""

import base64
import io

import PIL.Image
import pytest

from tests.support.code_turns import code_script
from tests.support.links import check_links, contents
from tests.support.service import Gate, Service
from tests.support.streaming import Event, log_of, place
from tests.support.transfer import export, import_document
from tests.support.turns import cancel, encoded, held_turn, png, submit_next, wait_for_end

DRAWN: list[Event] = [{"call": [["picture", {}]]}, {"say": "image.png"}]
TWO = "red, blue = make(what='image'), picture()\n"
ANSWERS: dict[str, tuple[str, list[Event], list[tuple[int, int]]]] = {
    "a tool's image": ("scripted", DRAWN, [(4, 4)]),
    "an image of code": ("coder", code_script("final_answer(picture())"), [(4, 4)]),
    "an image of code in a thread": ("threaded", code_script("final_answer(picture())"), [(4, 4)]),
    "a list": ("coder", code_script(f"{TWO}final_answer([red, 'and', blue, red])"), [(3, 2), (4, 4)]),
    "a dict": ("coder", code_script(f"{TWO}final_answer({{'of': {{'two': (red, blue)}}}})"), [(3, 2), (4, 4)]),
    "a text": ("scripted", [{"call": [["picture", {}]]}, {"say": "drawn"}], []),
    "too many": (
        "coder",
        code_script("final_answer([picture().resize((n, 1)) for n in range(1, 40)])"),
        [(n, 1) for n in range(1, 17)],
    ),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_images_of_an_answer_are_linked_in_turn_step_and_events(service: Service, kind: str) -> None:
    agent, script, sizes = ANSWERS[kind]
    turn = service.play(*script, agent=agent)
    check_links(service, turn, "images")
    assert sizes_of(service, turn["output_images"]) == sizes
    assert turn["images"] == []


def test_images_of_a_message_are_linked_from_the_start_of_its_turn(service: Service, gate: Gate) -> None:
    photo = encoded(PIL.Image.new("RGB", (300, 200), (9, 9, 9)), "JPEG")
    with held_turn(service, gate.path, images=[photo, png("red")]) as first:
        queued = submit_next(service, first, {"say": "later"}, images=[png("blue")])
        unbegun = submit_next(service, first, {"say": "never"}, images=[png("green")])
        assert [queued["images"], unbegun["images"]] == [[], []]
        running = service.get(place(first))
        assert running["status"] == "running"
        assert sizes_of(service, running["images"]) == [(300, 200), (6, 5)]
        assert service.client.get(running["images"][0]["url"]).content == base64.b64decode(photo)
        assert cancel(service, unbegun).json()["images"] == []
    assert wait_for_end(service, first)["images"] == running["images"]
    later = wait_for_end(service, queued)
    assert sizes_of(service, later["images"]) == [(6, 5)]
    assert wait_for_end(service, unbegun)["images"] == []
    failed = service.play({"raise": "kaputt"}, images=[png("red")])
    assert (failed["status"], sizes_of(service, failed["images"])) == ("failed", [(6, 5)])


def test_no_link_is_left_to_dropped_or_destroyed_images(service: Service, gate: Gate) -> None:
    with held_turn(service, gate.path, images=[png("red")]) as first:
        second = submit_next(service, first, *DRAWN, on_busy="rollback", images=[png("blue")])
        assert wait_for_end(service, first)["images"] == []
    turn = wait_for_end(service, second)
    assert len(sizes_of(service, turn["images"] + turn["output_images"])) == 2
    third = service.follow_up(turn, {"say": "third"}, images=[png("blue")])
    body = {"policy": {"name": "keep_last_n_steps", "n": 1}, "destroy": True}
    pruned = service.client.post(f"/conversations/{turn['conversation_id']}/prune", json=body)
    assert pruned.status_code == 200, pruned.text
    assert pruned.json()["destroyed"] > 0
    left = service.get(place(turn))
    assert left["output_images"] == []
    assert left["images"] == third["images"] != []
    assert log_of(service, turn)[-1].data["result"] == left


def test_an_image_inside_of_data_is_not_exported_and_has_no_link_after_an_import(service: Service) -> None:
    turn = service.play(*ANSWERS["a list"][1], agent="coder")
    imported = import_document(service, export(service, turn["conversation_id"]))["id"]
    found = service.get(f"/conversations/{imported}/turns/1")
    assert (found["output"], found["output_images"]) == (turn["output"], [])


def sizes_of(service: Service, images: list[Event]) -> list[tuple[int, int]]:
    found = [PIL.Image.open(io.BytesIO(data)).size for _, _, data in contents(service, images)]
    assert found == [(image["width"], image["height"]) for image in images]
    return found
