"""Client of the service. Its methods are named as the operations of openapi.yaml."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, Self, Unpack

import httpx2
from pydantic import Field, RootModel

from smolsessions.client import requests
from smolsessions.client.aio.connection import NO_CONTENT, AsyncConnection, read
from smolsessions.client.errors import ApiError, foreign_answer
from smolsessions.client.requests import Answer, TurnOptions, named, new_key, path_of, turn_request
from smolsessions.client.tools import Toolbox
from smolsessions.core.requests import Decision
from smolsessions.wire import conversations as wire
from smolsessions.wire.events import TurnEnded, TurnEvent, TurnWaiting
from smolsessions.wire.turns import Effect, EffectPage, Turn, TurnPage

WAIT_S = 25
"""Seconds for which one request waits for a turn's end. Many proxies end a silent request after 30."""
TAKEN = {"already_answered", "not_waiting", "request_not_found"}
"""Codes of an answer that comes too late: another client has answered, or the turn was stopped."""
TIMEOUT = httpx2.Timeout(60, connect=10, pool=None)


class ReadConversation(wire.Conversation):
    """A conversation with its version at the time of the answer."""

    etag: str | None = Field(None, exclude=True, description="Version for `if_match`. None: a proxy removed it.")


class AsyncClient:
    """Client of one service. All methods raise `ApiError` and `UnreachableError`."""

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        patience_s: float = 60,
        http: httpx2.AsyncClient | None = None,
    ) -> None:
        """Connect to a service when it is first used.

        `patience_s`: seconds for which a request that fails is repeated. `http`: for this service alone, with timeouts,
        proxies and certificates of your own. It is closed with this client.
        """
        http = http or httpx2.AsyncClient(timeout=TIMEOUT, limits=httpx2.Limits())
        http.base_url = requests.check_address(base_url)
        if api_key:
            http.headers["Authorization"] = f"Bearer {requests.check_key(api_key)}"
        self._service = AsyncConnection(http, patience_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. Turns continue."""
        await self._service.aclose()

    async def turn(self, message: str, **options: Unpack[TurnOptions]) -> Turn:
        """Send a message, wait for the turn's end however long it takes, and return the turn.

        A turn that fails is returned too: its `status` is `failed`, and `error` has the cause. A turn that waits for a
        person is returned at once: its `status` is `waiting`, and `requests` are to be answered. `tools` are called.
        """
        internal, tools = options.get("include_internal_tools", False), options.get("tools", ())
        turn = await self._post_turn(message, options, WAIT_S)
        return await self.run_tools(turn, tools, include_internal_tools=internal)

    async def submit(self, message: str, **options: Unpack[TurnOptions]) -> Turn:
        """Send a message, and return its turn at once."""
        return await self._post_turn(message, options, 0)

    def stream(
        self, message: str, *, until: requests.Until | None = None, **options: Unpack[TurnOptions]
    ) -> AsyncGenerator[TurnEvent]:
        """Send a message, and yield each event of its turn once. A lost connection is opened again.

        `until` `waiting`: the stream also ends when the turn waits for a person. `tools` are called.
        """
        body, headers, internal = turn_request(message, options, blocks=self._service.blocks)
        begin = self._service.streamed("/turn", headers, body, internal=internal, until=until)
        events, tools = self._service.events(begin, "", internal=internal, until=until), options.get("tools")
        return self._answered(events, Toolbox(tools, blocks=self._service.blocks)) if tools else events

    async def _post_turn(self, message: str, options: TurnOptions, wait_s: int) -> Turn:
        body, headers, internal = turn_request(message, options, blocks=self._service.blocks)
        headers["Prefer"] = f"respond-async, wait={wait_s}"
        params = {"include_internal_tools": internal}
        return await self._service.ask(Turn, "POST", "turn", json=body, params=params, headers=headers, wait_s=wait_s)

    def list_turns(
        self, conversation_id: str, *, order: requests.Order | None = None, include_internal_tools: bool | None = None
    ) -> AsyncGenerator[Turn]:
        params = named(order=order, include_internal_tools=include_internal_tools)
        return self._service.items(TurnPage, params, "conversations", conversation_id, "turns")

    async def get_turn(self, conversation_id: str, turn: int, *, include_internal_tools: bool = False) -> Turn:
        params = {"include_internal_tools": include_internal_tools}
        return await self._service.ask(Turn, "GET", *_turn(conversation_id, turn), params=params)

    def get_turn_events(
        self,
        conversation_id: str,
        turn: int,
        *,
        after: int = 0,
        until: requests.Until | None = None,
        include_internal_tools: bool = False,
    ) -> AsyncGenerator[TurnEvent]:
        """Yield each event of a turn once, from the first one after number `after`.

        `until` `waiting`: the stream also ends when the turn waits for a person.
        """
        path = path_of(*_turn(conversation_id, turn), "events")
        return self._service.events(None, path, after, internal=include_internal_tools, until=until)

    def list_turn_effects(
        self, conversation_id: str, turn: int, *, order: requests.Order | None = None
    ) -> AsyncGenerator[Effect]:
        """Yield the effects of a turn that runs or waits. One that is over has none."""
        return self._service.items(EffectPage, named(order=order), *_turn(conversation_id, turn), "effects")

    async def cancel_turn(
        self, conversation_id: str, turn: int, *, wait_s: int = 0, include_internal_tools: bool = False
    ) -> Turn:
        """Request a turn to stop, and return it. `wait_s`: longest wait for its end."""
        path = (*_turn(conversation_id, turn), "cancel")
        params, headers = {"include_internal_tools": include_internal_tools}, {"Prefer": f"wait={wait_s}"}
        return await self._service.ask(Turn, "POST", *path, params=params, headers=headers, wait_s=wait_s)

    async def run_tools(self, turn: Turn, tools: requests.Tools, *, include_internal_tools: bool = False) -> Turn:
        """Call the functions that a turn asks for, and return it at its end, or when it waits for another answer.

        A function is called again if its client ended before it had sent the result.
        """
        toolbox, internal = Toolbox(tools, blocks=self._service.blocks), include_internal_tools
        turn = await self._settled(turn, internal)
        while answers := await toolbox.answers(turn.requests):
            await self._answer_calls(turn, answers)
            turn = await self.get_turn(turn.conversation_id, turn.turn, include_internal_tools=internal)
            turn = await self._settled(turn, internal)
        return turn

    async def _answered(self, events: AsyncGenerator[TurnEvent], toolbox: Toolbox) -> AsyncGenerator[TurnEvent]:
        """Yield events of a turn, and answer its calls of these functions."""
        async with aclosing(events):
            async for event in events:
                yield event
                if isinstance(event, TurnWaiting):
                    turn = await self.get_turn(event.conversation_id, event.turn)  # the wait may be over since long
                    if answers := await toolbox.answers(turn.requests):
                        await self._answer_calls(turn, answers)

    async def _answer_calls(self, turn: Turn, answers: Sequence[Answer]) -> None:
        try:
            await self.answer_turn(turn.conversation_id, turn.turn, answers, wait_s=0)
        except ApiError as error:
            if error.code not in TAKEN:
                raise

    async def answer(
        self,
        turn: Turn,
        request_id: str,
        decision: Decision | None = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        reason: str | None = None,
        text: str | None = None,
        result: Any = None,
        error: str | None = None,
    ) -> Turn:
        """Answer one request of a waiting turn, and return the turn at its end, or when it waits for another answer.

        `approve` with `arguments` changes the call's arguments. A question is answered with `text`, or with `reject`, a
        call of a tool of yours with `result`, any JSON, or with `error`.
        """
        answer: Any = named(request_id=request_id, decision=decision, arguments=arguments, reason=reason, text=text)
        answer |= named(result=result, error=error)
        return await self.answer_turn(turn.conversation_id, turn.turn, [answer])

    async def answer_turn(
        self,
        conversation_id: str,
        turn: int,
        answers: Sequence[Answer],
        *,
        wait_s: int | None = None,
        include_internal_tools: bool = False,
    ) -> Turn:
        """Answer requests of a waiting turn. One invalid answer refuses all. The same answer twice changes nothing.

        `wait_s`: longest wait for the turn's end or next request. None: however long it takes.
        """
        path, seconds = (*_turn(conversation_id, turn), "answers"), WAIT_S if wait_s is None else wait_s
        request: dict[str, Any] = {
            "json": {"answers": list(answers)},
            "params": {"include_internal_tools": include_internal_tools},
            "headers": {"Prefer": f"respond-async, wait={seconds}"},
        }
        answered = await self._service.ask(Turn, "POST", *path, **request, wait_s=seconds, is_safe=True)
        return answered if wait_s is not None else await self._settled(answered, include_internal_tools)

    def stream_answers(
        self,
        conversation_id: str,
        turn: int,
        answers: Sequence[Answer],
        *,
        until: requests.Until | None = None,
        include_internal_tools: bool = False,
    ) -> AsyncGenerator[TurnEvent]:
        """Answer requests of a waiting turn, and yield the events from `input.answered` on. See `stream`."""
        path, internal = path_of(*_turn(conversation_id, turn)), include_internal_tools
        body = {"answers": list(answers)}
        begin = self._service.streamed(f"{path}/answers", {}, body, internal=internal, until=until)
        return self._service.events(begin, f"{path}/events", internal=internal, until=until)

    async def _settled(self, turn: Turn, internal: bool) -> Turn:
        """Return a turn at its end, or when it waits for a person."""
        place, after = (turn.conversation_id, turn.turn), 0
        while turn.timing.finished_at is None and turn.status != "waiting":
            events = self.get_turn_events(*place, after=after, until="waiting", include_internal_tools=internal)
            async for event in events:
                if isinstance(event, TurnEnded):
                    return event.result
                after = event.seq
            turn = await self.get_turn(*place, include_internal_tools=internal)
        return turn

    async def create_conversation(
        self,
        *,
        id: str | None = None,  # noqa: A002 - named as on the wire
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        policy: requests.Policy | None = None,
        ttl_s: float | None = None,
        approve: Sequence[str] | None = None,
        client_tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ReadConversation:
        """Create an empty conversation. `approve`: tools whose calls wait for a person's approval."""
        body = named(id=id, agent=agent, metadata=metadata, policy=policy, ttl_s=ttl_s, approve=approve)
        return await self._conversation(
            "POST", "conversations", json=body | named(client_tools=client_tools), headers=new_key()
        )

    def list_conversations(
        self,
        *,
        sort: Literal["updated", "created"] | None = None,
        order: requests.Order | None = None,
        agent: str | None = None,
        status: str | None = None,
        metadata: Mapping[str, str] | None = None,
        q: str | None = None,
        search_in: Literal["title", "messages"] | None = None,
    ) -> AsyncGenerator[wire.ListedConversation]:
        """Yield conversations, those that were used last first. `q` is searched for in titles, or also in messages."""
        params = named(sort=sort, order=order, agent=agent, status=status, q=q, search_in=search_in)
        params |= {f"metadata[{key}]": value for key, value in (metadata or {}).items()}
        return self._service.items(wire.ConversationPage, params, "conversations")

    async def get_conversation(self, conversation_id: str) -> ReadConversation:
        return await self._conversation("GET", "conversations", conversation_id)

    async def update_conversation(
        self, conversation_id: str, changes: Mapping[str, Any], *, if_match: str | None = None
    ) -> ReadConversation:
        """Apply a JSON merge patch to metadata, policy, ttl_s, title and approve.

        `if_match` is the `etag` of the conversation as you read it. If it has changed since, an `ApiError` with the
        code `precondition_failed` is raised, and nothing is changed.
        """
        headers = None if if_match is None else {"If-Match": if_match}
        return await self._conversation("PATCH", "conversations", conversation_id, json=changes, headers=headers)

    async def delete_conversation(self, conversation_id: str) -> None:
        """Delete a conversation permanently."""
        response = await self._service.send("DELETE", "conversations", conversation_id)
        if response.status_code != NO_CONTENT:
            raise foreign_answer(response, response.text)

    def list_steps(
        self,
        conversation_id: str,
        *,
        type: str | None = None,  # noqa: A002 - named as on the wire
        archived: bool | None = None,
        order: requests.Order | None = None,
    ) -> AsyncGenerator[wire.Step]:
        params = named(type=type, archived=archived, order=order)
        return self._service.items(wire.StepPage, params, "conversations", conversation_id, "steps")

    async def get_prompt(
        self, conversation_id: str, *, summary_mode: bool = False, turn: int | None = None, step: int | None = None
    ) -> wire.Prompt:
        """Return the model's next prompt, or rebuild the one before a step (the first) of a past turn."""
        params = {"summary_mode": summary_mode, **named(turn=turn, step=step)}
        return await self._service.ask(wire.Prompt, "GET", "conversations", conversation_id, "prompt", params=params)

    async def list_variables(self, conversation_id: str) -> list[wire.Variable]:
        """Return the variables of a conversation, with previews and sizes."""
        return (await self._service.ask(wire.VariableList, "GET", "conversations", conversation_id, "variables")).items

    async def list_workspace_files(self, conversation_id: str) -> list[wire.WorkspaceFile]:
        """Return the files of a conversation's workspace that its agent may read: some of them beyond 20,000."""
        path = ("conversations", conversation_id, "workspace", "files")
        return (await self._service.ask(wire.WorkspaceFileList, "GET", *path)).items

    async def get_workspace_file(self, conversation_id: str, path: str) -> bytes:
        place = ("conversations", conversation_id, "workspace", "files", *path.split("/"))
        return (await self._service.send("GET", *place)).content

    async def get_image(self, conversation_id: str, name: str) -> bytes:
        """Return the file of an image. `name` is the end of its `url`."""
        return (await self._service.send("GET", "conversations", conversation_id, "images", name)).content

    async def get_file(self, conversation_id: str, name: str) -> bytes:
        """Return the content of a file. `name` is the end of its `url`."""
        return (await self._service.send("GET", "conversations", conversation_id, "files", name)).content

    async def prune_conversation(
        self,
        conversation_id: str,
        *,
        policy: requests.Policy | None = None,
        dry_run: bool = False,
        destroy: bool = False,
    ) -> wire.PruneResult:
        """Remove the steps from the memory that a policy drops."""
        body = {**named(policy=policy), "dry_run": dry_run, "destroy": destroy}
        return await self._service.ask(wire.PruneResult, "POST", "conversations", conversation_id, "prune", json=body)

    async def roll_back_conversation(self, conversation_id: str, turn: int) -> ReadConversation:
        """Restore the state after a turn."""
        return await self._conversation("POST", "conversations", conversation_id, "rollback", json={"turn": turn})

    async def fork_conversation(
        self, conversation_id: str, *, turn: int | None = None, metadata: Mapping[str, Any] | None = None
    ) -> ReadConversation:
        """Create a conversation from the state after a turn."""
        path, body = ("conversations", conversation_id, "fork"), named(turn=turn, metadata=metadata)
        return await self._conversation("POST", *path, json=body, headers=new_key())

    async def export_conversation(self, conversation_id: str) -> dict[str, Any]:
        """Return the conversation as a document (docs/export.md)."""
        path = ("conversations", conversation_id, "export")
        return (await self._service.ask(RootModel[dict[str, Any]], "GET", *path)).root

    async def import_conversation(
        self,
        document: Mapping[str, Any],
        *,
        id: str | None = None,  # noqa: A002 - named as on the wire
        agent: str | None = None,
    ) -> ReadConversation:
        params = named(id=id, agent=agent)
        return await self._conversation("POST", "imports", json=document, params=params, headers=new_key())

    async def list_agents(self) -> list[wire.Agent]:
        """Return all agents, the default agent first."""
        return (await self._service.ask(wire.AgentList, "GET", "agents")).items

    async def get_agent(self, name: str) -> wire.AgentDetails:
        """Return an agent with the schema of its tools, its examples and its limits."""
        return await self._service.ask(wire.AgentDetails, "GET", "agents", name)

    async def get_liveness(self) -> None:
        """Return if the process runs."""
        await self._service.send("GET", "livez")

    async def get_readiness(self) -> None:
        """Return if the process accepts requests."""
        await self._service.send("GET", "readyz")

    async def get_metrics(self) -> str:
        """Return metrics in the Prometheus text format."""
        return (await self._service.send("GET", "metrics")).text

    async def _conversation(self, method: str, *path: object, **request: Any) -> ReadConversation:
        response = await self._service.send(method, *path, **request)
        return read(ReadConversation, response).model_copy(update={"etag": response.headers.get("ETag")})


def _turn(conversation_id: str, turn: int) -> tuple[object, ...]:
    return "conversations", conversation_id, "turns", turn
