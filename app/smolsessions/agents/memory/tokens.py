"""Estimated tokens of texts and prompts, without a model's vocabulary.

The estimate uses what today's tokenizers have in common. They split a text into words, runs of punctuation and short
groups of digits, then merge frequent pieces. The weights were fitted to two tokenizers.
`tests/memory/test_tokens.py` prints the error by kind of text. The model's own count of an
earlier prompt corrects the estimate of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from string import ascii_letters, ascii_uppercase, digits, punctuation
from typing import TYPE_CHECKING, Any

from smolagents import MultiStepAgent, ToolCallingAgent
from smolagents.memory import ActionStep, MemoryStep
from smolagents.models import ChatMessage
from smolagents.utils import AgentMaxStepsError

if TYPE_CHECKING:
    from smolsessions.agents.memory.prompt_steps import PromptMemory

MESSAGE_TOKENS = 4
"""Cost of a message beside its text: its role and separators."""
IMAGE_TOKENS = 1000
"""Cost of an image. Models count it by its size, from about a hundred to a few thousand."""
MAX_AGE = 20  # steps back to the newest count of the model
MIN_FACTOR = 0.5  # a smaller count is not one of the whole prompt: some models leave out cached tokens
MAX_FACTOR = 8
MAX_UNRECORDED_FACTOR = 2  # if the step does not record its prompt
_SHOWN = "shown_estimate"
"""Attribute of an action step: the estimated tokens of the steps in its prompt."""

_WORD, _LETTER, _CAPITAL = 0.44, 0.1, 0.95
_FOREIGN = 0.05  # added for each letter of a language with accents
_ACCENT = 0.53
_DIGIT, _SIGNS, _SIGN, _LINES = 0.87, 0.85, 0.13, 1.4
_MOST_ACCENTED = 0.01  # share of accents from which the whole text counts as foreign
_THAI, _VIETNAMESE = (b"\xe0\xb8", b"\xe0\xb9"), (b"\xe1\xba", b"\xe1\xbb")
_THAI_LESS = 0.19

# Cost of a character, by the first byte of its UTF-8 form.
_SCRIPTS = (
    (0xCE, 0xCF, 0.37),  # Greek
    (0xD0, 0xD5, 0.24),  # Cyrillic, Armenian
    (0xD6, 0xD7, 0.43),  # Hebrew
    (0xD8, 0xDF, 0.27),  # Arabic
    (0xE0, 0xE0, 0.45),  # Indian scripts, Thai
    (0xE1, 0xE1, 0.64),  # Georgian, Khmer, …; also the Latin letters of Vietnamese
    (0xE2, 0xE2, 1.2),  # quotation marks, arrows, mathematics
    (0xE3, 0xE3, 0.52),  # kana
    (0xE4, 0xE9, 0.51),  # Chinese characters
    (0xEA, 0xED, 0.5),  # hangul
    (0xEE, 0xEF, 0.9),  # wide forms
    (0xF0, 0xF4, 2.2),  # emoji, rare characters
)


def estimate(text: str) -> int:
    """Return the estimated tokens of a text, in about ten microseconds for a thousand characters of English."""
    if not text:
        return 0
    data = text.encode(errors="replace")
    classes = data.translate(_CLASSES)
    tokens = (
        _WORD * _runs(data, _IS_LETTER)
        + _CAPITAL * classes.count(_UPPER)
        + _DIGIT * classes.count(_NUMBER)
        + (_SIGNS - _SIGN) * _runs(data, _IS_SIGN)
        + _SIGN * classes.count(_MARK)
        + _LINES * (data.count(b"\n") - data.count(b"\n\n"))
    )
    letters = len(data) - len(data.translate(None, _LETTERS))
    accents = 0
    if not text.isascii():
        scripts = data.translate(_CLASSES, _NO_FIRST)
        vietnamese = sum(map(data.count, _VIETNAMESE)) if _TALL in scripts else 0
        thai = sum(map(data.count, _THAI)) if _INDIAN in scripts else 0
        accents = scripts.count(_ACCENTED) + vietnamese
        tokens += _ACCENT * accents - _SCRIPTS[_TALL][-1] * vietnamese - _THAI_LESS * thai
        tokens += sum(cost * scripts.count(script) for script, (_, _, cost) in enumerate(_SCRIPTS))
    foreign = min(1.0, accents / (_MOST_ACCENTED * letters + 1))
    return max(1, round(tokens + (_LETTER + _FOREIGN * foreign) * letters))


def estimate_messages(messages: Sequence[ChatMessage]) -> int:
    """Return the estimated tokens of messages: their texts, and a constant for each message and image."""
    return sum(MESSAGE_TOKENS + _content(message.content) for message in messages)


@dataclass(frozen=True, slots=True)
class Scale:
    """Factor from estimated tokens to the model's own count."""

    factor: float = 1.0
    is_reported: bool = False

    def tokens(self, estimated: int) -> int:
        return round(estimated * self.factor)


class PromptTokens:
    """Tokens of an agent's prompts. They depend on its memory alone, so a replay in another process gets the same."""

    def __init__(self, agent: MultiStepAgent, memory: PromptMemory) -> None:
        self._agent = agent
        self._memory = memory
        self._before: tuple[object, int] = (None, 0)

    @property
    def before(self) -> int:
        """Estimated tokens in front of the steps: the system prompt and the descriptions of tools."""
        agent: Any = self._agent
        tools = agent.tools_and_managed_agents if isinstance(agent, ToolCallingAgent) else []
        system = agent.memory.system_prompt
        key = (system.system_prompt, tuple(map(id, tools)))
        if self._before[0] != key:
            described = sum(estimate(f"{tool.name}: {tool.description} {tool.inputs}") for tool in tools)
            self._before = key, estimate_messages(system.to_messages()) + described
        return self._before[1]

    def scale(self) -> Scale:
        """Return the model's count of its last prompt relative to the estimate.

        A step without a recorded estimate is of a turn without a policy, or of another service: it saw all steps.
        """
        steps = self._agent.memory.steps
        for place in islice(reversed(range(len(steps))), MAX_AGE):
            if counted := _counted(steps[place]):
                shown = shown_estimate(steps[place])
                most = MAX_FACTOR if shown is not None else MAX_UNRECORDED_FACTOR
                if shown is None:
                    shown = sum(one.estimate for one in islice(self._memory.steps(), place))
                factor = counted / max(1, self.before + shown)
                return Scale(min(factor, most), is_reported=True) if factor >= MIN_FACTOR else Scale()
        return Scale()


def set_shown_estimate(step: MemoryStep, estimated: int) -> None:
    """Record the estimated tokens of the steps in an action's prompt."""
    setattr(step, _SHOWN, estimated)


def shown_estimate(step: MemoryStep) -> int | None:
    shown: int | None = getattr(step, _SHOWN, None)
    return shown


def _counted(step: MemoryStep) -> int:
    """Return the reported tokens of an action's prompt, or 0.

    The prompt of an answer that the step limit forced is of another kind, so it does not count.
    """
    if not isinstance(step, ActionStep) or isinstance(step.error, AgentMaxStepsError) or not step.token_usage:
        return 0
    return int(step.token_usage.input_tokens)


def _content(content: object) -> int:
    if isinstance(content, str):
        return estimate(content)
    if not isinstance(content, list):
        return 0
    return sum(estimate(str(part["text"])) if "text" in part else IMAGE_TOKENS for part in content)


def _runs(data: bytes, is_one: bytes) -> int:
    marks = data.translate(is_one)
    return marks.count(b"\0\1") + marks.startswith(b"\1")


def _table(value_of: Callable[[int], int]) -> bytes:
    return bytes(map(value_of, range(256)))


def _class_of(byte: int) -> int:
    for script, (first, last, _) in enumerate(_SCRIPTS):
        if first <= byte <= last:
            return script
    return next((kind for kind, members in _KINDS.items() if byte in members), _OTHER)


_CAPITALS = ascii_uppercase.encode()
_LETTERS = ascii_letters.encode()
_UPPER, _NUMBER, _MARK, _ACCENTED, _OTHER = range(len(_SCRIPTS), len(_SCRIPTS) + 5)
_KINDS = {
    _UPPER: _CAPITALS,
    _NUMBER: digits.encode(),
    _MARK: punctuation.encode(),
    _ACCENTED: range(0xC3, 0xCC),  # the first bytes of Latin letters
}
_BEYOND_ASCII = range(0x80, 0x100)
_CLASSES = _table(_class_of)
_IS_LETTER = _table(lambda byte: byte in _LETTERS or byte in _BEYOND_ASCII)
_IS_SIGN = _table(lambda byte: _CLASSES[byte] == _MARK)
_NO_FIRST = bytes([*range(0xC3), *range(0xF5, 0x100)])
_INDIAN, _TALL = (_class_of(byte) for byte in (0xE0, 0xE1))
