"""Session: the live agent of one conversation. It runs one turn at a time, in the calling thread."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any

import PIL.Image
from pydantic_core import from_json, to_json
from smolagents import CodeAgent, MultiStepAgent
from smolagents.agents import ActionOutput
from smolagents.memory import ActionStep, AgentMemory, FinalAnswerStep, TaskStep

from smolsessions.agent_options import options_of
from smolsessions.agents.memory.memory_edits import EditTracker, Overlay
from smolsessions.agents.memory.policies import PolicyFunction
from smolsessions.agents.memory.prompt_builder import PromptBuilder
from smolsessions.agents.memory.prompt_steps import PromptMemory, may_change_steps
from smolsessions.agents.memory.scratchpad import WRITE as NOTE_WRITE
from smolsessions.agents.memory.scratchpad import scratchpad_of
from smolsessions.agents.memory.step_bytes import pack
from smolsessions.agents.memory.summarizer import Summarizer
from smolsessions.agents.option_checks import UNCONFINED, asks, tool_names
from smolsessions.agents.run.agent_run import AgentRun
from smolsessions.agents.run.agent_state import AgentNode, AgentState
from smolsessions.agents.run.approvals import Approvals
from smolsessions.agents.run.effects import as_text
from smolsessions.agents.run.failures import (
    FINAL_ANSWER_FAILED,
    OUTPUT_INVALID,
    TurnStopped,
    classify,
    is_swallowed_failure,
)
from smolsessions.agents.run.instrumentation import clean_up, instrument
from smolsessions.agents.run.journal import Journal
from smolsessions.agents.run.step_writer import StepWriter
from smolsessions.agents.run.tool_proxy import proxy_tools
from smolsessions.agents.run.turn_files import UNREAD, files_of, state_of_files
from smolsessions.agents.run.turn_run import TurnRun, call_order
from smolsessions.agents.sandbox.fork_client import ForkClient
from smolsessions.agents.smolagents_patches import patch_agent
from smolsessions.agents.tools.client_tools import adapted_tools
from smolsessions.agents.tools.output_schema import answer_check, output_problems, tools_of_turn
from smolsessions.agents.tools.workspace_tools import workspaces_of
from smolsessions.agents.values.images import image_from_bytes
from smolsessions.agents.values.json_forms import cut_text, joined_text, json_form, label_of, utf8_text
from smolsessions.agents.values.media import attach_files, drop_pixels
from smolsessions.agents.values.results import without_text
from smolsessions.caller import CALLER
from smolsessions.core.agent_ports import EventBridge
from smolsessions.core.attachments import File, name_of
from smolsessions.core.callers import Caller
from smolsessions.core.errors import AgentUnavailableError
from smolsessions.core.events import ReplayState
from smolsessions.core.memories import PackedStep
from smolsessions.core.policies import Policy, policy_data, policy_of
from smolsessions.core.records import (
    AGENT_CHANGED,
    NO_SETTINGS,
    AgentVersion,
    ClientTool,
    ConversationSettings,
    Failure,
    Outcome,
    RunState,
    Suspension,
    Turn,
    TurnInput,
)

log = logging.getLogger(__name__)

MAX_REPLY_CHARS = 1_000_000
START = "start"
"""Name of the choices that hold for all attempts at a turn."""
ANSWER_TTL_S = 7 * 86400.0
ARGUMENTS = """
You have been provided with these additional arguments, that you can access directly using the keys as variables:
{arguments}."""
DIVERGED = Failure(
    "replay_diverged",
    "The process that played this turn ended, and when its run was replayed the agent asked for something else than "
    "it had done before. The turn ends with its finished steps rather than act twice.",
)


class AgentSession:
    """A conversation's agent with its memory. It runs in one thread at a time."""

    def __init__(
        self,
        agent: MultiStepAgent,
        overlay: Overlay,
        variables: dict[str, bytes],
        stored_classes: Sequence[type],
        fork_client: ForkClient,
        *,
        policy: Policy = (),
        own_policies: dict[str, PolicyFunction] | None = None,
        made_for: Caller,
        version: AgentVersion,
        takes_caller: bool = False,
        answer_ttl_s: float = ANSWER_TTL_S,
        refuses_approvals: bool = False,
    ) -> None:
        """`policy` is the agent's own memory policy, `own_policies` its functions by import string.

        `takes_caller`: the factory made the agent for this caller. `answer_ttl_s` bounds the wait for a person.
        `refuses_approvals`: the agent's code could reach the service and approve its own calls.
        """
        self._refuses_approvals = refuses_approvals
        self._answer_ttl_s = answer_ttl_s
        self._made_for = made_for
        self.version = version
        self._fingerprint = version.fingerprint if takes_caller else None
        self._agent = agent
        agent.memory.steps = overlay.memory()  # type: ignore[assignment]  # notes and summaries are steps, too
        self._prompt_builder = patch_agent(agent, own_policies or {})
        self._edits = EditTracker(overlay) if may_change_steps(agent) else None
        self._policy = policy
        self._memory = self._prompt_builder.memory if self._prompt_builder else PromptMemory(agent)
        if isinstance(agent, CodeAgent) and (overlay.has_gaps or not self._edits):

            def make_ids_unique(step: ActionStep) -> None:
                """Make a block's id unique: smolagents counts the steps in memory, and a prune removes some."""
                taken = self._memory.call_ids()
                for call in step.tool_calls or ():
                    while call.id in taken:
                        call.id += "_2"

            agent.step_callbacks.register(ActionStep, make_ids_unique)
        if self._prompt_builder:
            agent.step_callbacks.register(ActionStep, self._prompt_builder.record_estimate)
            summary_model = options_of(agent).summary_model
            self._prompt_builder.summarize = Summarizer(agent, self._prompt_builder, summary_model)
        self._nodes: list[AgentNode] = []
        self._root = instrument(agent, fork_client, tuple(stored_classes), self._nodes)
        self._asks = asks(agent)
        self._state = AgentState(self._nodes, variables)
        for node in self._nodes:
            managed, of_managed = node.agent, node.agent.write_memory_to_messages
            if node.memory and isinstance(of_managed, PromptBuilder):
                of_managed.begin_turn(policy_of(options_of(managed).memory_policy))
                of_managed.summarize = Summarizer(managed, of_managed, options_of(managed).summary_model)
                managed.step_callbacks.register(ActionStep, of_managed.record_estimate)
        self._scratchpad = scratchpad_of(agent)
        self._workspaces = workspaces_of(agent)
        if self._scratchpad:
            self._scratchpad.open(agent)
        self._writer: StepWriter | None = None
        self.held_bytes = 0

    def serves(self, caller: Caller) -> bool:
        """Compare the claims, as tools may hold what these allow, or the whole callers if the factory took one.

        An agent with a workspace serves its conversation alone.
        """
        if not all(bound.serves(caller) for bound in self._workspaces):
            return False
        return self._made_for == caller if self._fingerprint else self._made_for.has_claims_of(caller)

    def run_turn(
        self,
        turn: Turn,
        turn_input: TurnInput,
        caller: Caller,
        bridge: EventBridge,
        *,
        replay: ReplayState | None = None,
        settings: ConversationSettings = NO_SETTINGS,
    ) -> Outcome | Suspension:
        turn_run = TurnRun(bridge, turn.attempts, caller, replay)
        journal, builder = turn_run.journal, self._prompt_builder
        # A replay keeps the settings of its first attempt: others would change prompts and calls. An attempt that made
        # no such choice had none.
        policy = self._policy if settings.policy is None else settings.policy
        own = {"policy": policy_data(policy), "approve": list(settings.approve), "fingerprint": self._fingerprint}
        if settings.client_tools:
            own["client_tools"] = list(map(asdict, settings.client_tools))
        known = journal.chosen(START)
        if known is None and any(own.values()) and not journal.has_effects:
            known = journal.once(START, lambda: to_json(own))
        choice = from_json(known) if known else dict.fromkeys(own)
        if self._fingerprint and choice["fingerprint"] not in {None, self._fingerprint}:
            return Outcome("failed", error=AGENT_CHANGED)
        if builder:
            builder.begin_turn(policy_of(choice["policy"] or []))
        names = {*(choice["approve"] or ()), *turn.options.approve}
        described = {tool["name"]: ClientTool(**tool) for tool in choice.get("client_tools") or ()}
        described |= {tool.name: tool for tool in turn.options.client_tools}
        own_tools = self._agent.tools
        client_tools = adapted_tools([*described.values()], tool_names(self._agent)) if described else []
        approvals = None
        if names or self._asks or client_tools:
            if self._refuses_approvals:
                raise AgentUnavailableError(f"This turn needs approvals, and here the agent cannot wait: {UNCONFINED}.")
            approvals = Approvals(
                turn_run,
                turn,
                names=names,
                root=self._agent,
                stored_classes=self._root.stored_classes,
                ttl_s=self._answer_ttl_s,
            )
        if self._scratchpad:
            self._scratchpad.expect(journal.results_of(NOTE_WRITE))
        agent_run = self._root.agent_run = AgentRun(turn_run, turn.agent.name)
        own_checks, schema = self._agent.final_answer_checks, turn.options.output_schema
        schema = options_of(self._agent).output_schema if schema is None else schema
        if client_tools or schema:
            self._agent.tools = tools_of_turn(self._agent, client_tools, schema)
        if schema:
            self._agent.final_answer_checks = [answer_check(schema), *own_checks]
        proxy_tools(self._root)
        writer = self._writer = StepWriter(self._root, agent_run, turn.number, self._edits, replay)
        agent_run.before_model_call = writer.write_finished
        if builder:
            builder.before = writer.take_messages
        for node in self._nodes:
            node.approvals = approvals
        token = CALLER.set(caller)  # for models, callbacks and instructions
        try:
            outcome = self._run(turn, turn_input, journal, writer, schema)
        finally:
            CALLER.reset(token)
            writer.close()
            agent_run.before_model_call = lambda: None  # without this cycle, run and writer are freed at once
            if builder:
                builder.before = None
            self._writer = self._root.agent_run = None  # a warm session holds no turn that is over
            for node in self._nodes:
                node.approvals = None
            self._agent.tools, self._agent.final_answer_checks = own_tools, own_checks
            self._state.stop_interpreters()
            self.held_bytes = drop_pixels(self._memory.illustrated()) + self._state.size()
        if approvals and approvals.requests and not (bridge.stop_requested or journal.diverged):
            asked = sorted(approvals.requests.values(), key=lambda request: call_order(request.call_id))
            return Suspension(tuple(asked), writer.outcome("cancelled"), approvals.media)
        left_out = builder.left_out() if builder else None
        return replace(outcome, left_out=left_out) if left_out else outcome

    def cut_model_calls(self) -> None:
        agent_run = self._root.agent_run
        if agent_run:
            agent_run.turn_run.end_waits()

    def partial_outcome(self) -> Outcome:
        return self._writer.outcome("cancelled") if self._writer else Outcome("cancelled")

    def close(self) -> None:
        """Release the steps at once (the agent refers to itself, so only the collector frees it) and clean up."""
        self._agent.memory = AgentMemory("")
        self._state.stop_interpreters()
        clean_up(self._agent)

    def _run(
        self, turn: Turn, turn_input: TurnInput, journal: Journal, writer: StepWriter, schema: dict[str, Any] | None
    ) -> Outcome:
        answer: FinalAnswerStep | None = None
        failure: Failure | None = None
        try:
            images: list[PIL.Image.Image] = [image_from_bytes(data) for data in turn_input.images]
            message = turn.message + self._state.begin_turn(forgets=turn.options.reset)
            arguments, files = turn.additional_args, files_of(turn_input) if turn_input.files else ()
            if files:
                values, sentence = state_of_files(self._root, files, arguments)
                self._state.put(self._root, values)
                message += sentence
            writer.task_changes_variables = bool(arguments) or message != turn.message
            run: Any = self._agent.run(
                message,
                stream=True,
                reset=False,
                images=images or None,
                additional_args=deepcopy(arguments) if arguments else None,  # the agent may change them
                max_steps=turn.options.max_steps,
            )
            if files:
                attach_files(self._agent.memory.steps[-1], files)
            writer.write_finished()  # the task, before anything can stop the turn
            for item in run:
                writer.write_finished()
                if isinstance(item, ActionOutput) and item.is_final_answer:
                    writer.answer = without_text(item.output)
                elif isinstance(item, FinalAnswerStep):
                    answer = FinalAnswerStep(without_text(item.output))
            writer.write_finished(are_whole=True)
            writer.write_edits()
        except TurnStopped:
            return writer.outcome("failed", error=DIVERGED) if journal.diverged else writer.outcome("cancelled")
        except BaseException as error:  # of the agent, whose code may raise anything: the turn fails
            # At debug level only: a provider's exception may hold a prompt or a key.
            log.debug("turn %s#%d failed", turn.ref, turn.number, exc_info=error)
            writer.write_rest()
            failure = classify(writer.defect or error)
        if journal.diverged or (journal.holds_more and not failure):
            return writer.outcome("failed", error=DIVERGED)
        output = answer.output if answer else None
        state: RunState | None = None
        if answer and not failure:
            state = "max_steps_error" if writer.ran_out else "success"
            if state == "max_steps_error" and is_swallowed_failure(output):
                failure = FINAL_ANSWER_FAILED
            elif schema and output_problems(schema, output):
                failure = OUTPUT_INVALID
        if failure:
            return writer.outcome("failed", state=state, error=failure)
        media = {"images": writer.images, "files": writer.files}
        return writer.outcome("finished", reply=_reply(output), output=json_form(output), state=state, **media)


def task_step(turn: Turn, turn_input: TurnInput) -> PackedStep:
    """Return the task of a turn that ended before its agent ran, as `MultiStepAgent.run` words it."""
    task = turn.message
    if turn.additional_args:
        task += ARGUMENTS.format(arguments=turn.additional_args)
    files = files_of(turn_input)
    if files:
        task += UNREAD.format(files=", ".join(map(name_of, files)))
    step = TaskStep(task, [image_from_bytes(data) for data in turn_input.images] or None)
    attach_files(step, files)
    return pack(step, turn.number)


def _reply(output: Any) -> str:
    """Return an answer as text: content parts joined, data as JSON."""
    if isinstance(output, str):
        text = utf8_text(str(output))
    elif (parts := joined_text(output)) is not None:
        text = utf8_text(parts)
    elif isinstance(output, PIL.Image.Image | File):
        text = label_of(output)
    else:
        text = as_text(output)
    return cut_text(text, MAX_REPLY_CHARS)
