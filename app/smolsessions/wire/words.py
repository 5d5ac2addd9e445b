"""Words that answers hold. More may come, so a client passes unknown ones on."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from smolsessions.core.events import MessageChannel
from smolsessions.core.events import StepKind as EventStepKind
from smolsessions.core.records import ConversationStatus as StatusOfConversation
from smolsessions.core.records import RunState, TurnStatus
from smolsessions.core.records import StepType as EntryType


def _word(literal: object, meaning: str = "") -> object:
    known = get_args(literal)
    text = f"{meaning} Known values: {', '.join(f'`{each}`' for each in known)}. More may come."
    return Field(description=text.strip(), examples=[known[0]], json_schema_extra={"x-extensible-enum": list(known)})


Status = Annotated[str, _word(TurnStatus)]
ConversationStatus = Annotated[str, _word(StatusOfConversation)]
State = Annotated[str, _word(RunState, "How smolagents ended the run.")]
StepType = Annotated[str, _word(EntryType)]
StepKind = Annotated[str, _word(EventStepKind)]
Channel = Annotated[str, _word(MessageChannel, "Part of the model's message.")]
