"""Files and audio of turns: sent with a message, used by tools and code, answered, and served."""

import base64
import io
import json
import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from smolsessions.agents.run.turn_files import UNKEPT
from tests.support.code_turns import code_script
from tests.support.openapi import check_links, contents
from tests.support.preloaded import PYTHONPATH
from tests.support.problems import nothing_stored, problem, send
from tests.support.service import Gate, Service, run_program, shared_service
from tests.support.sounds import AGENTS, CSV, PDF, sent, sound
from tests.support.streaming import Event, log_of, place
from tests.support.terminal import command
from tests.support.transfer import export, import_document, post_import
from tests.support.turns import DONE, cancel, encoded, held_turn, png, submit_next, submit_turn, wait_for_end

FILES = [sent("data.csv", "text/csv", CSV), sent("the contract.pdf", "application/pdf", PDF)]
SPOKEN: list[Event] = [{"call": [["speak", {"text": "hello"}]]}, {"say": "audio.wav"}]
SPEECH = ("audio.wav", "audio/wav", sound(frames=5))
CONTRACT = ("the contract.pdf", "application/pdf", PDF)
REPORT = ("report.csv", "text/csv", b"a,b\n" * 3)
BOTH = "[speak('hello'), {'of': write_report(3)}]"
ANSWERS: dict[str, tuple[str, list[Event], list[tuple[str, str, bytes]]]] = {
    "a tool's audio by name": ("teller", SPOKEN, [SPEECH]),
    "a tool's file by name": ("teller", [{"call": [["write_report", {"lines": 3}]]}, {"say": "report.csv"}], [REPORT]),
    "a file of the message by name": ("teller", [{"say": CONTRACT[0]}], [CONTRACT]),
    "audio of code": ("coder", code_script("final_answer(speak('hello'))"), [SPEECH]),
    "parts of a list": ("coder", code_script(f"final_answer({BOTH})"), [SPEECH, REPORT]),
    "parts of a list in a thread": ("threaded", code_script(f"final_answer({BOTH})"), [SPEECH, REPORT]),
    "a text": ("teller", [{"call": [["speak", {"text": "hello"}]]}, DONE], []),
}
# A service whose agents take and return files.
files = shared_service({"AGENTS": AGENTS, "MAX_FILE_BYTES": "100000"})


@pytest.fixture(scope="module")
def document(files: Service) -> Event:
    return export(files, files.play({"say": "hi"}, agent="teller", files=FILES)["conversation_id"])


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_files_of_an_answer_are_linked_in_turn_step_and_events(files: Service, kind: str) -> None:
    agent, script, expected = ANSWERS[kind]
    turn = files.play(*script, agent=agent, files=FILES)
    check_links(files, turn, "files")
    assert contents(files, turn["output_files"]) == expected
    assert contents(files, turn["files"]) == [("data.csv", "text/csv", CSV.encode()), CONTRACT]
    assert files.steps(turn)[0]["files"] == turn["files"]


def test_a_tool_gets_a_file_by_its_name_and_the_model_reads_the_name_only(files: Service) -> None:
    calls = [
        ["count_lines", {"text": "data.csv"}],
        ["describe", {"file": "the contract.pdf"}],
        ["describe", {"file": "a.wav"}],
    ]
    script: list[Event] = [{"call": calls}, {"call": [["refuse", {"text": "data.csv"}]]}, {"shown": True}]
    turn = files.play(*script, agent="teller", files=[*FILES, sent("a.wav", "audio/x-wav", sound(11025))])
    assert files.steps(turn)[1]["observations"] == f"3\nFile {len(PDF)} None\nAudio {len(sound())} 11025"
    prompt = turn["reply"]
    assert "data.csv (text/csv, 27 bytes)" in prompt
    assert "no text of 27 characters is welcome" in prompt
    assert "Paris" not in prompt
    called = [call["arguments"] for call in turn["tool_calls"]]
    assert called[0] == called[3] == {"text": "data.csv"}
    assert "Paris" not in str(log_of(files, turn)[-1].data)


@pytest.mark.parametrize("agent", ["coder", "threaded"])
def test_files_are_variables_of_code_in_later_turns_too(files: Service, agent: str) -> None:
    code = "print(data_csv, the_contract_pdf.data[:4], describe(the_contract_pdf))\nheard = speak('hey')"
    turn = files.play(*code_script(code), DONE, agent=agent, files=FILES)
    assert f"{CSV} b'%PDF' File {len(PDF)} None" in files.steps(turn)[1]["observations"]
    later = files.follow_up(turn, *code_script("final_answer([heard.rate, len(data_csv), the_contract_pdf])"))
    assert later["output"][:2] == [8000, len(CSV)]
    assert later["output_files"] == turn["files"][1:]


@pytest.mark.parametrize(
    ("names", "variables", "arguments"),
    [
        (
            ["data 1.csv", "data_1.csv", "data-1.csv", "7.csv", "count.lines"],
            "data_1_csv_2, data_1_csv_3, data_1_csv_4, file_7_csv, count_lines_2",
            {"data_1_csv": 5},
        ),
        (
            ["Fläche m².csv", "½ ௰.csv", "ﬁne.csv", "__class__.csv"],
            "Fläche_m2_csv, file_1_2_csv, fine_csv, class_csv",
            {},
        ),
    ],
)
def test_file_variables_are_writable(files: Service, names: list[str], variables: str, arguments: Event) -> None:
    sent_files = [sent(name, "text/csv", name) for name in names]
    block = f"final_answer([{', '.join([variables, *arguments])}])"
    turn = files.play(*code_script(block), agent="coder", files=sent_files, additional_args=arguments)
    assert turn["output"] == [*names, *arguments.values()]


def test_no_other_argument_is_taken_for_a_tools_file(files: Service) -> None:
    turn = files.play(
        {"call": [["write_letter", {"name": "Rome"}]]},
        {"call": [["count_lines", {"text": "Rome"}], ["describe", {"file": "Rome.txt"}]]},
        DONE,
        agent="teller",
    )
    assert [s["observations"] for s in files.steps(turn)[1:3]] == ["Stored 'Rome.txt' in memory.", "1\nFile 5 None"]


def test_a_tools_file_beyond_the_room_is_not_kept_and_the_model_reads_why(files: Service) -> None:
    turn = files.play(
        {"call": [["write_report", {"lines": 9_000_000}]]},
        {"call": [["write_report", {"lines": 1}]]},
        {"say": "report.csv"},
        agent="teller",
    )
    assert [step["observations"] for step in files.steps(turn)[1:3]] == [
        f"[file report.csv, text/csv, 36,000,000 bytes]{UNKEPT}",
        "Stored 'report.csv' in memory.",
    ]
    assert turn["output_files"][0]["size_bytes"] == len(b"a,b\n")


def test_forks_imports_and_rollbacks_keep_files_and_images(files: Service) -> None:
    turn = files.play(*SPOKEN, agent="teller", files=FILES, images=[png("red")])
    drawn: list[Event] = [{"call": [["picture", {}]]}, {"say": "image.png"}]
    later = files.follow_up(turn, *drawn, files=[sent("data.csv", "text/csv", "new")])
    name = turn["conversation_id"]
    document = export(files, name)
    others = [import_document(files, document)["id"], files.post(f"/conversations/{name}/fork", turn=2).json()["id"]]
    for other in others:
        again = files.get(f"/conversations/{other}/turns")["items"]
        for one, copy in zip((turn, later), again, strict=True):
            for field in ("files", "output_files", "images", "output_images"):
                assert contents(files, copy[field]) == contents(files, one[field])
                kind = field.removeprefix("output_")
                assert all(link["url"].startswith(f"/conversations/{other}/{kind}/") for link in copy[field])
        call = {"call": [["describe", {"file": "the contract.pdf"}], ["count_lines", {"text": "data.csv"}]]}
        found = files.play(call, DONE, agent="teller", conversation_id=other)
        assert files.steps(found)[-2]["observations"] == f"File {len(PDF)} None\n1"
    assert len(contents(files, turn["images"] + later["output_images"])) == 2
    assert export(files, others[0])["turns"][:2] == document["turns"]
    files.post(f"/conversations/{name}/rollback", turn=1)
    back = files.play({"call": [["count_lines", {"text": "data.csv"}]]}, DONE, agent="teller", conversation_id=name)
    assert files.steps(back)[-2]["observations"] == "3"


def _renamed(document: Event) -> None:
    name, file = document["files"].popitem()
    document["files"]["0" * 32] = file | {"data": "AAAA"}
    document["steps"][0]["task_files"] = ["0" * 32 if it == name else it for it in document["steps"][0]["task_files"]]


def _changed(**members: Any) -> Callable[[Event], None]:
    def change(document: Event) -> None:
        next(iter(document["files"].values())).update(members)

    return change


NONE = "0" * 32
HOSTILE: dict[str, tuple[Callable[[Event], Any], str]] = {
    "no object": (lambda document: document.update(files=[]), "/files"),
    "a file that nothing names": (lambda document: document["steps"][0].update(task_files=[]), "/files/"),
    "a step that names no file": (lambda document: document["steps"][0]["task_files"].append(NONE), "/task_files/2"),
    "a number for a file": (lambda document: document["steps"][0].update(task_files=[5]), "/steps/0/task_files/0"),
    "other content": (_changed(data="AAAA"), "/files/"),
    "another hash": (_renamed, f"/files/{NONE}"),
    "a path": (_changed(name="../../etc/passwd"), "/files/"),
    "a line break in the name": (_changed(name="a\r\nX: y.csv"), "/files/"),
    "a header in the type": (_changed(media_type="text/csv\r\nX: y"), "/files/"),
    "no base64": (_changed(data="a!"), "/data"),
    "another kind": (_changed(kind="program"), "/kind"),
    "a rate of a text": (_changed(kind="audio", rate=-1), "/files/"),
    "a member more": (_changed(path="/etc/passwd"), "/path"),
}


def test_an_import_with_a_wrong_file_is_refused_with_the_place(files: Service, document: Event) -> None:
    with nothing_stored(files):
        for kind, (change, place) in HOSTILE.items():
            changed = deepcopy(document)
            change(changed)
            (error,) = problem(post_import(files, changed), 422, "invalid_request")["errors"]
            assert place in error["pointer"], kind


def test_files_and_images_are_not_served_as_each_other(files: Service) -> None:
    url = files.play(*SPOKEN, agent="teller", files=FILES)["files"][0]["url"]
    assert files.client.get(url.replace("/files/", "/images/")).status_code == 404
    assert files.client.get(f"{url[:-1]}{'1' if url[-1] == '0' else '0'}").status_code == 404
    assert files.client.get(url.rpartition("/")[0] + "/data.csv").status_code == 422


def test_a_file_is_a_download_that_no_browser_runs(files: Service) -> None:
    code = "a = write_report(1)\nfinal_answer(type(a)(b'<script>', 'text/html', 'ünter \\'%.html'))"
    (file,) = files.play(*code_script(code), agent="coder")["output_files"]
    assert file["media_type"] == "text/html"
    response = files.client.get(file["url"])
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert response.headers["content-disposition"] == (
        "attachment; filename=\"_nter '_.html\"; filename*=UTF-8''%C3%BCnter%20%27%25.html"
    )


BAD_NAMES = "a/b.csv|a\\b.csv|../b.csv|Paris|.csv|a\n.csv|a\u202ev.csv|a\0.csv|a:b.csv|.|a.csv.||\ud800.csv|taken.csv"
BAD_TYPES = ["text/html", "image/svg+xml", "image/png", "text/csv; charset=utf-16", "text/csv\r\nX: y"]
BAD_CONTENTS = ["a!", "YQ==\nYQ==", "YWJj0", "ＹＱ==", "http://127.0.0.1/", 5]  # noqa: RUF001 - base64 of another script
SOUNDS = ("audio/mpeg", "audio/wav", "audio/ogg", "audio/flac", "audio/webm", "audio/mp4")
BAD_KINDS = [
    *(sent("a.bin", kind, "MZ") for kind in (*SOUNDS, "application/pdf")),
    *(sent("a.csv", "text/csv", data) for data in (b"\xff\xfe", "a\0b")),
    {"name": "a.csv", "media_type": "text/csv"},
]
MANY = [sent(f"{number}.csv", "text/csv", "a" * 60_000) for number in range(17)]
REFUSED: list[tuple[Any, str]] = [
    *(
        ([sent(name, "text/csv", "")], "/files/0/name")
        for name in [*BAD_NAMES.split("|"), "a" * 296 + ".csv", "a" * 100 + ".csv"]
    ),
    ([sent("ä.csv", "text/csv", ""), sent("a\u0308.csv", "text/csv", "")], "/files/1/name"),
    *(([sent("a.csv", kind, "a")], "/files/0/media_type") for kind in BAD_TYPES),
    *(([{"name": "a.csv", "media_type": "text/csv", "data": data}], "/files/0/data") for data in BAD_CONTENTS),
    *(([file], "/files/0/data") for file in BAD_KINDS),
    ("a.csv", "/files"),
    (["a.csv"], "/files/0"),
    ([FILES[0] | {"path": "/etc/passwd"}], "/files/0/path"),
    (MANY, "/files"),
    ([sent("a.csv", "text/csv", "a" * 100_001)], "MAX_FILE_BYTES"),
    (MANY[:2], "MAX_FILE_BYTES"),
]


def test_a_refused_file_changes_nothing(files: Service) -> None:
    with nothing_stored(files):
        for sent_files, place in REFUSED:
            body = {"message": "[]", "agent": "teller", "files": sent_files, "additional_args": {"taken.csv": 1}}
            response = send(files, "POST", "/turn", json.dumps(body))
            refusal = (422, "invalid_request") if place.startswith("/") else (413, "too_large")
            assert place in str(problem(response, *refusal).get("errors") or response.text), (sent_files, place)
    most = files.play({"say": "hi"}, agent="teller", files=[sent("a.csv", "text/csv", "a" * 100_000)])
    assert most["files"][0]["size_bytes"] == 100_000


def test_data_urls_and_charsets_are_read(files: Service) -> None:
    data = f"data:text/csv;charset=utf-8;base64,{base64.b64encode(CSV.encode()).decode()}"
    file = {"name": "ä b.csv", "media_type": "text/csv; charset=UTF-8", "data": data}
    turn = files.play({"call": [["count_lines", {"text": "ä b.csv"}]]}, DONE, agent="teller", files=[file])
    assert (files.steps(turn)[1]["observations"], turn["files"][0]["name"]) == ("3", "ä b.csv")


def test_a_chat_sends_files_and_images_and_shows_links(files: Service, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b"\xef\xbb\xbf" + CSV.encode())
    (tmp_path / "red.PNG").write_bytes(base64.b64decode(png("red")))
    calls = [["describe", {"file": "data.csv"}], ["speak", {"text": "hello"}]]
    ended = run_program(
        [*command("chat", "teller", "--url", files.url), "--file", "data.csv", "--file", "red.PNG"],
        input=json.dumps([{"call": calls}, {"say": "audio.wav"}]) + '\n[{"say": "second"}]\n',
        cwd=tmp_path,
        check=True,
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "COLUMNS": "200"},
    )
    assert f"✓ str {len(CSV)} None" in ended.stdout
    assert "audio.wav, audio/wav, 54 bytes: http://" in ended.stdout
    second, first = files.get("/conversations?limit=1")["items"][0], ended.stdout
    turns = files.get(f"/conversations/{second['id']}/turns")["items"]
    assert [(len(turn["files"]), len(turn["images"])) for turn in turns] == [(1, 1), (0, 0)], first


def test_a_replayed_turn_has_the_same_files_and_images(tmp_path: Path, gate: Gate) -> None:
    script = [
        {"call": [["speak", {"text": "hello"}], ["picture", {}]]},
        gate.script,
        {"call": [["describe", {"file": "audio.wav"}], ["count_lines", {"text": "data.csv"}]]},
        {"say": "image.png"},
    ]
    settings = {"AGENTS": AGENTS.partition(",")[0], "DEMO_AGENTS": "0", "LEASE_S": "0.5"}
    with Service(tmp_path / "service", settings) as service:
        turn = submit_turn(service, *script, agent="teller", files=FILES, images=[png("red")])
        gate.reached()
        service.kill()
        gate.open()
        service.start()
        played = wait_for_end(service, turn)
        assert (played["status"], played["attempts"]) == ("finished", 2)
        assert service.steps(played)[-2]["observations"] == f"Audio {len(SPEECH[2])} 8000\n3"
        unbroken = service.play(*script, agent="teller", files=FILES, images=[png("red")])
        for field, count in (("files", 2), ("images", 1), ("output_images", 1)):
            found = contents(service, played[field])
            assert len(found) == count
            assert found == contents(service, unbroken[field])


DRAWN: list[Event] = [{"call": [["picture", {}]]}, {"say": "image.png"}]
TWO = "red, blue = make(what='image'), picture()\n"
IMAGES: dict[str, tuple[str, list[Event], list[tuple[int, int]]]] = {
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


@pytest.mark.parametrize("kind", IMAGES)
def test_the_images_of_an_answer_are_linked_in_turn_step_and_events(service: Service, kind: str) -> None:
    agent, script, sizes = IMAGES[kind]
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
    assert sizes_of(service, wait_for_end(service, queued)["images"]) == [(6, 5)]
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
    turn = service.play(*IMAGES["a list"][1], agent="coder")
    imported = import_document(service, export(service, turn["conversation_id"]))["id"]
    found = service.get(f"/conversations/{imported}/turns/1")
    assert (found["output"], found["output_images"]) == (turn["output"], [])


def sizes_of(service: Service, images: list[Event]) -> list[tuple[int, int]]:
    found = [PIL.Image.open(io.BytesIO(data)).size for _, _, data in contents(service, images)]
    assert found == [(image["width"], image["height"]) for image in images]
    return found
