"""Words that answers hold, and times. More words may come, so a client passes on those that it does not know."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, get_args

from pydantic import Field, JsonValue, PlainSerializer, WithJsonSchema

from smolsessions.core import effects, events, records, requests
from smolsessions.core.errors import FAILURES, STEP_FAILURES, codes_of_answers


def _word(known: Any, meaning: str) -> object:
    """Describe a text whose `known` words are a list, or those of a `Literal`."""
    words: list[JsonValue] = list(get_args(known) or known)
    text = f"{meaning} Known values: {', '.join(f'`{each}`' for each in words)}. More may come."
    return Field(description=text, examples=[words[0]], json_schema_extra={"x-extensible-enum": words})


Time = Annotated[
    datetime,
    PlainSerializer(lambda time: time.isoformat(timespec="milliseconds").replace("+00:00", "Z"), when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Time in UTC. JSON has it to the millisecond."""
Status = Annotated[str, _word(records.TurnStatus, "State of the turn.")]
ConversationStatus = Annotated[
    str,
    _word(
        records.ConversationStatus,
        "`running`: a turn runs. `queued`: none runs, and at least one is to. `waiting`: a turn waits for a person.",
    ),
]
OnBusyWord = Annotated[str, _word(records.OnBusy, "Meeting with a turn of the conversation that runs or waits.")]
RequestWord = Annotated[
    str, _word(requests.RequestKind, "What is asked. `result`: a call of a tool of yours, for you to make.")
]
ApprovalWord = Annotated[
    str,
    _word(requests.ApprovalDecision, "`edited`: approved with other arguments. `expired`: nobody answered in time."),
]
DecisionWord = Annotated[
    str,
    _word(
        requests.Decision,
        "`reject`: the call is not made, or the question not answered. `result`: the client ran its tool.",
    ),
]
RunOutcome = Annotated[str, _word(records.RunState, "How smolagents ended the run.")]
PlaceOfCall = Annotated[str, _word(("service", "client"), "Place where the call ran.")]
StepType = Annotated[str, _word(records.StepType, "Kind of step.")]
StepKind = Annotated[str, _word(events.StepKind, "Kind of step.")]
Channel = Annotated[str, _word(events.MessageChannel, "Part of the model's message.")]
EventType = Annotated[str, _word(events.EVENT_TYPES, "Kind of event, also the `event:` line.")]
ProblemCode = Annotated[str, _word(sorted(codes_of_answers()), "Stable name of the error (docs/reference/errors.md).")]
_FAILURES = sorted(FAILURES | STEP_FAILURES)
FailureCode = Annotated[str, _word(_FAILURES, "Stable name of the error (docs/reference/errors.md).")]
EffectKind = Annotated[
    str,
    _word(
        effects.EffectKind,
        "`code`: a block of code. `check`: of the final answer. `request`: a question or an approval that was asked. "
        "`answer`: a person's answer to it. `message`: a message that joined the turn.",
    ),
]
EffectState = Annotated[str, _word(effects.EffectState, "`begun`: no result is stored yet. `done`: one is.")]
CodePlace = Annotated[
    str, _word(("child", "thread", "docker", "e2b", "modal", "blaxel", "remote"), "Place where code runs.")
]
Confinement = Annotated[
    str, _word(("namespaces", "landlock", "uid", "none", "not run here"), "Strongest confinement of code.")
]
VariableKind = Annotated[
    str,
    _word(
        ("variable", "state", "tool", "file"),
        "`variable`: of the agent's code. `state`: of its state, such as `additional_args`. `tool`: of a tool.",
    ),
]
TokenCount = Annotated[
    str, _word(("reported", "estimated"), "`reported`: the tokens are those that the model counted.")
]
