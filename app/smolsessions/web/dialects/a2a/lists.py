"""Lists of tasks: of one context, or of all contexts with an agent."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from heapq import heappop, heappush

from pydantic import AwareDatetime, Field

from smolsessions.core.errors import NotFoundError, SealBrokenError, TooLargeError
from smolsessions.core.records import AgentName, ConversationQuery, ConversationStatus, Owner, Ref, Turn
from smolsessions.web.cursors import cursor_at, position_of
from smolsessions.web.dialects.a2a.messages import Params
from smolsessions.web.dialects.a2a.tasks import STATES, Json, answer_parts, changed_at, status_of, task_of
from smolsessions.web.dialects.gateway import CONVERSATION_ID, Gateway

MOST_READ = 10_000  # turns, before those of a page
AT_ONCE = 20
MICROS = 1_000_000
_PLACE = re.compile(rf"[0-9]{{1,16}} {CONVERSATION_ID.pattern} [0-9]{{1,10}}")
_OPEN: dict[str, ConversationStatus] = {STATES["running"]: "running", STATES["waiting"]: "waiting"}

Key = tuple[int, str, int]
"""Place of a turn in the list: time of its status in negative microseconds, conversation, negative number."""


class ListParams(Params):
    context_id: str = ""
    status: str = ""
    page_size: int = Field(50, ge=1, le=100)
    page_token: str = ""
    history_length: int | None = Field(None, ge=0)
    status_timestamp_after: AwareDatetime | None = None
    include_artifacts: bool = False


async def list_tasks(gateway: Gateway, owner: Owner, agent: AgentName, sent: ListParams) -> Json:
    """Return a page of tasks, the last changed first.

    `totalSize` counts the tasks up to the end of the page, and one more if others follow.
    """
    of = ("tasks", owner, agent, sent.context_id, sent.status, str(sent.status_timestamp_after))
    position = position_of(sent.page_token or None, _PLACE, *of)
    last: Key | None = None
    if position:
        micros, context, number = position.split(" ")
        last = -int(micros), context, -int(number)
    since = sent.status_timestamp_after.timestamp() if sent.status_timestamp_after else 0.0
    tasks: list[Json] = []
    token, total = "", 0
    async with aclosing(_newest(gateway, owner, agent, sent)) as turns:
        async for key, turn in turns:
            is_wanted = sent.status in {"", "TASK_STATE_UNSPECIFIED", STATES[turn.status]}
            if not is_wanted or turn.agent.name != agent or changed_at(turn) < since:
                continue
            total += 1
            if last and key <= last:
                continue
            if last and len(tasks) == sent.page_size:
                token = cursor_at(f"{-last[0]} {last[1]} {-last[2]}", *of) or ""
                break
            last = key
            parts = answer_parts(turn, await gateway.media_of(turn)) if sent.include_artifacts else []
            tasks.append(task_of(turn, status_of(turn), parts, sent.history_length))
    return {"tasks": tasks, "nextPageToken": token, "pageSize": sent.page_size, "totalSize": total}


async def _newest(
    gateway: Gateway, owner: Owner, agent: AgentName, sent: ListParams
) -> AsyncGenerator[tuple[Key, Turn], None]:
    """Merge the turns of contexts, which come by their last change."""
    heap: list[tuple[Key, Turn, AsyncGenerator[Turn, None]]] = []

    async def take(turns: AsyncGenerator[Turn, None], most: int) -> None:
        if turn := await anext(turns, None):  # one that waits in the queue may be older than the one before it
            micros = min(most, round(changed_at(turn) * MICROS))
            heappush(heap, ((-micros, turn.ref.id, -turn.number), turn, turns))

    read = 0
    async for changed, context in _contexts(gateway, owner, agent, sent):
        while heap and (context is None or -heap[0][0][0] >= changed):
            key, turn, turns = heappop(heap)
            yield key, turn
            await take(turns, -key[0])
            if (read := read + 1) > MOST_READ:
                raise TooLargeError("These are too many tasks; name a context or a status.")
        if context is not None:
            await take(_turns(gateway, Ref(owner, context)), changed)


async def _contexts(
    gateway: Gateway, owner: Owner, agent: AgentName, sent: ListParams
) -> AsyncGenerator[tuple[int, str | None], None]:
    """Yield the last change of each context in microseconds, and its id. None comes at the end."""
    if sent.context_id:
        yield 2**53, sent.context_id
    query, after = ConversationQuery(agent=agent, status=_OPEN.get(sent.status)), None
    while not sent.context_id:
        page = await gateway.conversations.store.conversations(owner, query, after, AT_ONCE)
        for each in page.items:
            yield round(each.updated_at * MICROS), each.ref.id
        if not (after := page.next_cursor):
            break
    yield 0, None


async def _turns(gateway: Gateway, ref: Ref) -> AsyncGenerator[Turn, None]:
    number = None
    with suppress(
        NotFoundError, SealBrokenError
    ):  # deleted meanwhile, or damaged: a read of the conversation alone raises the error
        while number != 0:
            page = await gateway.turns.store.turns(ref, number, AT_ONCE, "desc")
            for turn in page.items:
                yield turn
            number = int(page.next_cursor or 0)
