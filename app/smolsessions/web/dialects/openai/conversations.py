"""OpenAI's Conversations, which are those of this service, and the items of their turns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from pydantic_core import to_json

from smolsessions.core.errors import AgentUnavailableError, InvalidRequestError, NotFoundError
from smolsessions.core.events import InputAnswered, Logged, ToolReturned, TurnEnded, TurnWaiting
from smolsessions.core.records import AgentName, Conversation, ConversationFields, Ref, Turn
from smolsessions.core.requests import Answer, InputRequest
from smolsessions.web.dialects.bodies import imported_history, read_body
from smolsessions.web.dialects.gateway import Fold, Gateway, data_url
from smolsessions.web.dialects.openai.content import InputItem, messages_of
from smolsessions.web.dialects.openai.items import Item, Segment, parsed_segment
from smolsessions.web.dialects.openai.responses_fold import NO_FRAMES, ResponseFold
from smolsessions.web.dialects.places import Place, new_id, place_of, turn_of_request
from smolsessions.web.routes.common import CallerOwner, answer

Metadata = Annotated[dict[str, str], Field(max_length=16)]
PageSize = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(max_length=500)]
ItemOrder = Literal["asc", "desc"]

MOST_BYTES = 8 << 20  # of the items in a page, before those of its last turn


class NewConversationBody(BaseModel):
    metadata: Metadata | None = None
    items: Annotated[list[InputItem], Field(max_length=20)] | None = None


class MetadataBody(BaseModel):
    metadata: Metadata


class TurnLog(Fold):
    """Fold that keeps the events of a turn: its requests by id, its answers by event number, its results by call."""

    drops_void_text = False

    def __init__(self) -> None:
        self.events: list[Logged] = []
        self.requests: dict[str, InputRequest] = {}
        self.answers: dict[int, Sequence[Answer]] = {}
        self.results: dict[str, ToolReturned] = {}

    def frames(self, logged: Logged, *, waits: bool) -> tuple[bytes, ...]:
        event = logged.event
        self.events.append(logged)
        if isinstance(event, TurnWaiting):
            self.requests |= {request.request_id: request for request in event.requests}
        elif isinstance(event, InputAnswered):
            self.answers[logged.seq] = event.answers
        elif isinstance(event, ToolReturned):
            self.results[event.call_id] = event
        self.is_complete = waits or isinstance(event, TurnEnded)
        return ()


def conversation_routes(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/conversations")
    conversations = gateway.conversations

    @router.post("")
    async def create_conversation(request: Request, owner: CallerOwner) -> Response:
        """Create a conversation. Its first response sets the agent, unless it begins with items."""
        body = await read_body(request, NewConversationBody)
        metadata = body.metadata or {}
        agent = AgentName(metadata["agent"]) if "agent" in metadata else None
        conversation_id = f"conv_{new_id()}"
        if not body.items:
            fields = ConversationFields(dict(metadata))
            return JSONResponse(_view(await conversations.create(owner, conversation_id, agent, fields)))
        agent = agent or conversations.agents()[0].version.name
        earlier = messages_of(body.items, "/items").values()
        document = imported_history(((each.role, each.text) for each in earlier), agent)
        if not document["turns"]:
            raise InvalidRequestError.at("/items", "have no message of the user")
        document["metadata"] = metadata
        content = await conversations.read_document(document, agent)
        return JSONResponse(_view(await conversations.create_from(owner, content, conversation_id)))

    @router.get("/{conversation_id}")
    async def get_conversation(owner: CallerOwner, conversation_id: str) -> Response:
        return JSONResponse(_view(await conversations.store.conversation(Ref(owner, conversation_id))))

    @router.post("/{conversation_id}")
    async def update_conversation(request: Request, owner: CallerOwner, conversation_id: str) -> Response:
        body = await read_body(request, MetadataBody)
        ref = Ref(owner, conversation_id)
        return JSONResponse(_view(await conversations.patch(ref, {"metadata": body.metadata}, lambda _: None)))

    @router.delete("/{conversation_id}")
    async def delete_conversation(owner: CallerOwner, conversation_id: str) -> Response:
        await conversations.delete(Ref(owner, conversation_id))
        return JSONResponse({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    @router.get("/{conversation_id}/items")
    async def list_items(
        owner: CallerOwner,
        conversation_id: str,
        *,
        limit: PageSize = 20,
        order: ItemOrder = "desc",
        after: After = None,
    ) -> Response:
        """List items, turn by turn. A page ends early behind a turn with large images or files."""
        conversation = await conversations.store.conversation(Ref(owner, conversation_id))
        first = _turn_of(after, conversation) if after else None
        last = conversation.turn_count if order == "asc" else 1
        found: list[Item] = []
        size, has_more = 0, False
        async with aclosing(gateway.turns_from(conversation.ref, first, order)) as turns:
            async for turn in turns:
                page = await _items(gateway, conversation, turn)
                page = page if order == "asc" else page[::-1]
                if after and turn.number == first:
                    places = [place for place, item in enumerate(page) if item["id"] == after]
                    if not places:
                        raise NotFoundError(f"No item has the id {after[:80]!r}.")
                    page = page[places[0] + 1 :]
                found += page
                size += sum(len(to_json(item)) for item in page)
                if len(found) > limit or size > MOST_BYTES:
                    has_more = len(found) > limit or turn.number != last
                    break
        return answer(page_of(found[:limit], has_more=has_more))

    @router.get("/{conversation_id}/items/{item_id:path}")
    async def get_item(owner: CallerOwner, conversation_id: str, item_id: str) -> Response:
        conversation = await conversations.store.conversation(Ref(owner, conversation_id))
        turn = await gateway.turn_at(owner, Place(conversation_id, _turn_of(item_id, conversation)))
        for item in await _items(gateway, conversation, turn) if turn else ():
            if item["id"] == item_id:
                return JSONResponse(item)
        raise NotFoundError(f"No item has the id {item_id[:80]!r}.")

    return router


def asks_of(gateway: Gateway, conversation: Conversation) -> tuple[str, ...] | None:
    """Return names and patterns of the tools whose calls may ask. None: those of any tool may."""
    try:
        asks = gateway.conversations.agent(conversation.agent).approve
    except (AgentUnavailableError, NotFoundError):  # it was removed, and its responses are still read
        return None
    own = (*conversation.approve, *(tool.name for tool in conversation.client_tools))
    return None if asks is None else (*asks, *own)


async def read_turn(gateway: Gateway, turn: Turn) -> TurnLog:
    """Return the events that a turn has now, with the images of its answer."""
    log = TurnLog()
    await gateway.read(await gateway.follow(turn.ref, turn.number), log)
    return log


async def input_items(gateway: Gateway, turn: Turn, segment: Segment, log: TurnLog) -> list[Item]:
    """Return the items that a response answers: the user's message, or answers to requests."""
    if not segment.after:
        return [await _message(gateway, turn, segment)]
    found: list[Item] = []
    for each in log.answers.get(segment.after + 1, ()):
        request = log.requests.get(each.request_id)
        if request is None or request.kind == "approval":
            about: Item = {"type": "mcp_approval_response", "approval_request_id": each.request_id}
            about |= {"approve": each.decision == "approve", "reason": each.reason}
        elif request.kind == "question":
            text = each.text or each.reason or ""
            about = {"type": "message", "role": "user", "status": "completed"}
            about["content"] = [{"type": "input_text", "text": text}]
        else:
            result = log.results.get(request.call_id)
            about = {"type": "function_call_output", "call_id": each.request_id, "status": "completed"}
            about["output"] = (result.result or result.error or "") if result else ""
        found.append({"id": segment.item_id("in", len(found)), **about})
    return found


async def _items(gateway: Gateway, conversation: Conversation, turn: Turn) -> list[Item]:
    """Return all items of a turn. One that was rolled back has none."""
    if turn.rolled_back:
        return []
    log, segment = await read_turn(gateway, turn), Segment(place_of(turn), 0)
    fold = ResponseFold(turn, segment, {}, asks=asks_of(gateway, conversation), starting_after=NO_FRAMES)
    fold.media = log.media
    found = await input_items(gateway, turn, segment, log)
    known: set[str] = set()
    for logged in log.events:
        for _ in fold.frames(logged, waits=False):
            pass
        if fold.is_complete:  # an approval that stays open is asked for again by the next response
            found += [item for item in fold.output if item["id"] not in known]
            known.update(item["id"] for item in fold.output)
            segment = Segment(segment.place, logged.seq)
            fold.begin(segment)
            found += await input_items(gateway, turn, segment, log)
    return [*found, *(item for item in fold.output if item["id"] not in known)]


async def _message(gateway: Gateway, turn: Turn, segment: Segment) -> Item:
    content: list[Item] = [{"type": "input_text", "text": turn.message}]
    with suppress(NotFoundError):  # destroyed
        for image in turn.images:
            url = data_url(*await gateway.conversations.image(turn.ref, image.name))
            content.append({"type": "input_image", "detail": "auto", "image_url": url, "file_id": None})
        for file in turn.files:
            data = (await gateway.conversations.file(turn.ref, file.name)).data
            url = data_url(file.media_type, data)
            content.append({"type": "input_file", "filename": file.file_name, "file_data": url})
    about = {"id": segment.item_id("in", 0), "type": "message", "role": "user", "status": "completed"}
    return {**about, "content": content}


def _turn_of(item_id: str, conversation: Conversation) -> int:
    """Return the turn of an item. Raises `NotFoundError`."""
    segment = parsed_segment(item_id)
    place = segment.place if segment else turn_of_request(item_id)
    if place.conversation_id != conversation.ref.id or place.turn > conversation.turn_count:
        raise NotFoundError(f"No item has the id {item_id[:80]!r}.")
    return place.turn


def _view(conversation: Conversation) -> Item:
    about = {"id": conversation.ref.id, "object": "conversation", "created_at": int(conversation.created_at)}
    return {**about, "metadata": texts_of(conversation.metadata)}


def texts_of(metadata: dict[str, Any]) -> dict[str, str]:
    """Return metadata as OpenAI has them: texts."""
    return {name: value if isinstance(value, str) else str(value) for name, value in metadata.items()}


def page_of(found: list[Item], *, has_more: bool) -> Item:
    first, last = (found[0]["id"], found[-1]["id"]) if found else (None, None)
    return {"object": "list", "data": found, "first_id": first, "last_id": last, "has_more": has_more}
