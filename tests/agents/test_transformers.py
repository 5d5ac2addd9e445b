"""Models in this process: one call at a time. Skipped without torch, which weighs gigabytes with CUDA.

To run it: `pip install 'smolsessions[transformers]'`.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from smolagents import ChatMessage, MessageRole, Model, TransformersModel

from smolsessions.agents.config.schema import ModelOptions, ModelTable
from smolsessions.agents.models.providers import make_model
from smolsessions.agents.run.failures import classify_call
from smolsessions.core.errors import StartError

WORDS = [f"w{number}" for number in range(200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny model with random weights, and a tokenizer of 200 words."""
    pytest.importorskip("torch", reason="too large for the tests' lock file: pip install 'smolsessions[transformers]'")
    transformers: Any = pytest.importorskip("transformers")
    tokenizers: Any = pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("transformers") / "tiny"
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(["<unk>", *WORDS])}, unk_token="<unk>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<unk>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    tokenizer.save_pretrained(path)
    transformers.set_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=len(words.get_vocab()), max_position_embeddings=256, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    table = ModelTable(provider="transformers", id=str(folder), options=ModelOptions(max_tokens=20), timeout_s=5)
    return make_model(table)


def asked(word: str) -> list[Any]:
    return [ChatMessage(MessageRole.USER, [{"type": "text", "text": word}])]


def streamed(model: Model, word: str) -> str:
    return "".join(delta.content or "" for delta in model.generate_stream(asked(word)))  # type: ignore[attr-defined]


def test_streams_at_once_do_not_mix(model: Model) -> None:
    alone = {word: str(model.generate(asked(word)).content).split() for word in WORDS[:8]}
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda word: streamed(model, word).split(), alone))
    assert all(len(answer) > 1 for answer in together)
    assert together == [*alone.values()]


def test_a_stream_that_is_given_up_leaves_nothing_to_the_next_one(model: Model) -> None:
    whole = str(model.generate(asked("w1")).content).split()
    stream = model.generate_stream(asked("w2"))  # type: ignore[attr-defined]
    next(stream)
    stream.close()
    assert streamed(model, "w1").split() == whole


def test_a_generation_that_fails_is_a_timeout_and_frees_the_model(folder: Path) -> None:
    table = ModelTable(
        provider="transformers", id=str(folder), options=ModelOptions(max_tokens=5), first_byte_s=0.5, timeout_s=0.5
    )
    model: Any = make_model(table)
    assert isinstance(model, TransformersModel)
    generate, model.model.generate = model.model.generate, lambda **_: None
    with pytest.raises(TimeoutError) as caught:
        streamed(model, "w1")
    model.model.generate = generate
    assert classify_call(caught.value).code == "model_timeout"
    assert streamed(model, "w1")


def test_an_address_is_refused() -> None:
    with pytest.raises(StartError, match="neither base nor api_key_env"):
        make_model(ModelTable(provider="transformers", id="tiny", base="http://127.0.0.1:1"))
