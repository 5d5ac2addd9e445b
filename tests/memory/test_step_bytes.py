"""Steps ⇄ bytes: a step's allowed content is restored, other content is not, and no code runs meanwhile."""

import hashlib
import io
import json
import math
import pickle
import zoneinfo
from importlib import resources
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from smolagents.memory import ActionStep, MemoryStep, PlanningStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import AgentLogger, LogLevel, Timing, TokenUsage
from smolagents.utils import AgentError, AgentExecutionError

from smolsessions.agents.memory.step_bytes import (
    MAX_STEP_BYTES,
    StepTooLargeError,
    is_finished,
    pack,
    repair,
    strip,
    unpack,
)
from smolsessions.agents.memory.step_types import EditStep
from smolsessions.agents.values.images import image_from_bytes
from smolsessions.core.errors import SealBrokenError
from tests.support import agents, odd
from tests.support.documents import PROGRAMS, described, shown
from tests.support.service import PLAIN, Service, shared_service
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE

LOGGER = AgentLogger(level=LogLevel.OFF)
MORE = "odd=tests.support.odd:make_odd,code=tests.support.agents:make_code"


def subclasses(kind: type[AgentError]) -> list[type[AgentError]]:
    return [kind] + [found for child in kind.__subclasses__() for found in subclasses(child)]


OF_SMOLAGENTS = [kind for kind in subclasses(AgentError) if kind.__module__ == "smolagents.utils"]


class QuotaError(AgentExecutionError):
    def __init__(self, left: int) -> None:
        super().__init__(f"{left} left", LOGGER)
        self.left = left

    def __str__(self) -> str:
        return f"quota: {self.left} left"


def action(**fields: Any) -> ActionStep:
    function = ChatMessageToolCallFunction(name="make", arguments={"what": "x"})
    call = ChatMessageToolCall(id="call_1", type="function", function=function)
    message = ChatMessage(
        MessageRole.ASSISTANT, "I call.", tool_calls=[call], raw=object(), token_usage=TokenUsage(3, 4)
    )
    usual: dict[str, Any] = {
        "step_number": 2,
        "timing": Timing(1.0, 2.0),
        "model_input_messages": [message],
        "tool_calls": [ToolCall("make", {"what": "x"}, "call_1")],
        "model_output_message": message,
        "model_output": "I call.",
        "code_action": "make('x')",
        "observations": "seen",
        "token_usage": TokenUsage(3, 4),
    }
    return ActionStep(**(usual | fields))


def planning() -> PlanningStep:
    message = ChatMessage(MessageRole.ASSISTANT, "1. Think.", raw=object())
    return PlanningStep([message], message, "1. Think.", Timing(1.0, 2.0), TokenUsage(1, 2))


def again(step: MemoryStep, stored_classes: tuple[type, ...] = ()) -> Any:
    """Encode and decode a step twice, check that its prompt stays the same, and return the first copy."""
    before = shown(step)
    strip(step)
    packed = pack(step, 1, stored_classes)
    back = unpack(packed.data, packed.attachments, stored_classes)
    assert shown(back) == before
    twice = pack(back, 1, stored_classes)
    assert shown(unpack(twice.data, twice.attachments, stored_classes)) == before
    assert json.dumps(described([back]))
    return back


def output(value: Any) -> Any:
    return again(action(action_output=value)).action_output


# A service that rebuilds every session from its bytes.
service = shared_service({"AGENTS": f"{PLAIN['AGENTS']},{MORE}", "DEMO_AGENTS": "0", "WARM_SESSIONS": "0"})


def test_every_field_comes_back_except_the_history_and_the_providers_objects() -> None:
    step, plan = action(is_final_answer=True, action_output={"a": [1, 2.5, None, True, "é"]}), planning()
    back, back_plan = again(step), again(plan)
    assert (vars(back), vars(back_plan)) == (vars(step), vars(plan))
    assert (back.model_input_messages, back_plan.model_input_messages) == (None, [])
    assert (back.model_output_message.raw, back_plan.model_output_message.raw) == (None, None)
    assert (step.model_input_messages, plan.model_input_messages) == (None, [])
    task = again(TaskStep("Look.", [PIL.Image.new("RGB", (2, 3), (1, 2, 3))]))
    assert (task.task, task.task_images[0].getpixel((1, 1))) == ("Look.", (1, 2, 3))


def test_a_usual_step_is_stored_as_plain_data() -> None:
    assert all(b"smolagents" not in pack(step, 1).data for step in (action(), TaskStep("Look.")))


def test_parts_that_share_a_value_share_it_again() -> None:
    step = action()
    assert step.model_output_message
    assert step.model_output_message.tool_calls
    step.tool_calls = [ToolCall("make", step.model_output_message.tool_calls[0].function.arguments, "call_1")]
    step.token_usage = step.model_output_message.token_usage
    back = again(step)
    assert back.tool_calls[0].arguments is back.model_output_message.tool_calls[0].function.arguments
    assert back.token_usage is back.model_output_message.token_usage


@pytest.mark.parametrize("part", ["", "timing", "token_usage", "model_output_message"])
def test_attributes_that_a_callback_adds_come_back(part: str) -> None:
    step = action()
    vars(getattr(step, part) if part else step)["price"] = 0.5
    back = again(step)
    assert vars(getattr(back, part) if part else back)["price"] == 0.5


def test_the_frames_of_an_error_are_released() -> None:
    agent = agents.make_scripted()
    agent.run(json.dumps([{"call": [["fail", {"reason": "no"}]]}, {"say": "ok"}]))
    step = agent.memory.steps[1]
    assert isinstance(step, ActionStep)
    assert step.error
    assert step.error.__traceback__
    strip(step)
    assert not any((step.error.__traceback__, step.error.__cause__, step.error.__context__))


@pytest.mark.parametrize("kind", OF_SMOLAGENTS)
def test_an_error_of_smolagents_comes_back_as_itself(kind: type[AgentError]) -> None:
    error = kind("it broke: ü", LOGGER)
    back = again(action(error=error, tool_calls=None, observations=None)).error
    assert type(back) is kind
    assert (str(back), back.message, back.dict()) == (str(error), error.message, error.dict())


def test_an_error_of_a_users_class_comes_back_as_its_nearest_base() -> None:
    back = again(action(error=QuotaError(3), observations=None)).error
    assert type(back) is AgentExecutionError
    assert str(back) == "quota: 3 left"


def test_each_image_is_attached_once() -> None:
    red, same, blue = (PIL.Image.new("RGB", (9, 9), colour) for colour in ("red", "red", "blue"))
    packed = pack(action(observations_images=[red, same, blue], action_output=[red]), 1)
    assert len(packed.attachments) == 2
    assert len(described([unpack(packed.data, packed.attachments)])[0]["images"]) == 2
    assert all(PIL.Image.open(io.BytesIO(data)).size == (9, 9) for data in packed.attachments.values())


def test_an_image_changed_and_restored_has_its_first_name_again() -> None:
    buffer = io.BytesIO()
    PIL.Image.new("L", (4, 4), 9).save(buffer, "PNG", compress_level=0)
    image = image_from_bytes(buffer.getvalue())
    names = []
    for colour in (9, 1, 9):
        image.putpixel((0, 0), colour)
        names.append([*pack(TaskStep("Look.", [image]), 1).attachments])
    assert names[0] == names[2] != names[1]
    assert names[0] == [hashlib.sha256(buffer.getvalue()).hexdigest()[:32]]


def test_a_step_without_its_image_and_other_data_are_a_broken_seal() -> None:
    for data in (pack(TaskStep("Look.", [PIL.Image.new("L", (1, 1))]), 1).data, pickle.dumps({"task": "x"})):
        with pytest.raises(SealBrokenError):
            unpack(data, {})


@pytest.mark.parametrize("name", odd.PLAIN)
def test_values_with_a_json_form_come_back_as_data(name: str) -> None:
    make, expected = odd.PLAIN[name]
    back = output(make())
    assert (back, type(back)) == (expected, type(expected))


@pytest.mark.parametrize("name", odd.LABELLED)
def test_values_without_a_json_form_come_back_as_text(name: str) -> None:
    make, text = odd.LABELLED[name]
    odd.EXECUTED.clear()
    step = action(action_output=make())
    back = again(step)
    assert back.action_output.startswith(text)
    assert back.tool_calls == step.tool_calls
    assert back.model_output_message == step.model_output_message
    inside = output({"first": 1, "odd": [make()]})
    assert inside == {"first": 1, "odd": [inside["odd"][0]]}
    assert "loaded" not in odd.EXECUTED


def test_a_value_that_holds_itself_or_does_not_decode_is_stored_as_its_json_form() -> None:
    assert output(odd.recursive())[:1] == [1]
    with (resources.files("tzdata.zoneinfo.Europe") / "Berlin").open("rb") as file:
        nameless = zoneinfo.ZoneInfo.from_file(file)
    assert isinstance(output([nameless])[0], str)


def test_data_that_equals_nothing_else_comes_back() -> None:
    assert math.isnan(output([math.nan])[0])
    assert list(output({odd.Reducing(): 1, (odd.Reducing(), 2): {odd.Point(1, 2).x}}).values()) == [1, {1}]


@pytest.mark.parametrize("depth", [100, 300, 900, 5000, 100_000])
def test_no_depth_of_nesting_breaks_a_step(depth: int) -> None:
    assert output(agents.nested(depth)) is not None


CODE: list[str] = PROGRAMS["shown"]
RUNS: list[tuple[Any, list[dict[str, Any]]]] = [
    (agents.make_scripted, [{"call": [["fail", {"reason": "no"}]]}, {"say": "ok"}]),
    (agents.make_scripted, [{"call": [["echo", {"wrong": 1}]]}, {"call": [["nothing", {}]]}, {"say": "ok"}]),
    (agents.make_scripted, [{"text": "no call"}, {"call": [["picture", {}]]}, {"say": "ok"}]),
    (agents.make_scripted, [{"call": [["echo", {"text": "on and on"}]]}]),
    (agents.make_scripted, [{"call": [["make", {"what": "nested"}], ["make", {"what": "opaque"}]]}, {"say": "ok"}]),
    (agents.make_planner, [{"call": [["echo", {"text": "planned"}]]}, {"say": "ok"}]),
    (agents.make_checked, [{"say": "no full stop"}, {"say": "full stop."}]),
    (agents.make_code, [{"text": "no code"}, {"code": "echo(text=1 / 0)"}, {"say": "ok"}]),
    (agents.make_code, [*({"code": code} for code in CODE), {"say": "ok"}]),
]


@pytest.mark.parametrize(("factory", "script"), RUNS)
def test_every_step_of_a_run_is_finished_and_comes_back(factory: Any, script: list[dict[str, Any]]) -> None:
    agent = factory()
    agent.run(json.dumps(script), max_steps=max(3, len(script)))
    assert len(agent.memory.steps) > max(2, len(script))
    for step in agent.memory.steps:
        assert is_finished(step)
        again(step)


FORBIDDEN = """
    os:system builtins:eval builtins:getattr builtins:open functools:partial copyreg:_reconstructor __main__:f
    smolsessions.agents.memory.step_bytes:pickle.loads smolagents.memory:ActionStep.to_messages datetime:sys.modules
""".split()


@pytest.mark.parametrize("form", ["stack", "line"])
@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_pickle_with_another_name_is_refused_before_it_runs(name: str, form: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with pytest.raises(SealBrokenError):
        unpack(call_of(name, f"open({str(marker)!r}, 'w')", form), {})
    assert not marker.exists()


def test_the_pickles_of_the_test_above_would_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for form in ("stack", "line"):
        pickle.loads(call_of("builtins:eval", f"open({str(marker)!r}, 'w').close()", form))
        marker.unlink()


def call_of(function: str, argument: str, form: str) -> bytes:
    """Write a pickle that calls `module:name` when it is loaded."""
    module, _, name = function.partition(":")

    def text(value: str) -> bytes:
        return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()

    found = text(module) + text(name) + b"\x93" if form == "stack" else f"c{module}\n{name}\n".encode()
    return b"\x80\x04" + found + text(argument) + b"\x85R."


@pytest.mark.parametrize("error", [None, AgentError("an unusual step", LOGGER)])
@pytest.mark.parametrize("field", ["observations", "action_output"])
def test_a_step_larger_than_the_service_keeps_is_refused(field: str, error: AgentError | None) -> None:
    with pytest.raises(StepTooLargeError):
        pack(action(error=error, **{field: "x" * (MAX_STEP_BYTES + 1)}), 1)


def test_a_step_of_the_largest_size_is_stored() -> None:
    assert len(output("x" * (MAX_STEP_BYTES - 2000))) == MAX_STEP_BYTES - 2000


ODD = sorted({*odd.PLAIN, *odd.LABELLED, *odd.DEEP} - {"leaving", "half a character"})


@pytest.mark.parametrize("what", mostly_deep(ODD, fast=["deep", "generator", "hostile", "set"]))
def test_no_value_of_a_tool_breaks_a_conversation(service: Service, what: str) -> None:
    turn = service.play({"code": f"x = odd(what={what!r})\nNone"}, {"say": "done"}, agent="odd")
    answer = service.follow_up(turn, {"code": f"final_answer(odd(what={what!r}))"})
    assert turn["reply"] == "done"
    assert answer["status"] == "finished" or answer["error"]["code"] == "agent_error"
    assert service.follow_up(turn, {"say": "on"})["reply"] == "on"
    assert service.steps(turn)


HARMFUL: list[list[dict[str, Any]]] = [
    [{"code": "odd(what='half a character')"}, {"code": "final_answer(odd(what='half a character'))"}],
    [{"code": "counting()"}, DONE],
    [{"code": "final_answer(counting())"}],
    [{"code": "x = odd(what='leaving')\nNone"}, {"code": "final_answer(x)"}],
    [{"code": "class A:\n    def __str__(self):\n        raise SystemExit\nfinal_answer(A())"}],
]


@pytest.mark.parametrize("script", HARMFUL)
def test_half_a_character_or_an_exit_fails_only_its_turn(service: Service, script: list[dict[str, Any]]) -> None:
    turn = service.play(*script, agent="odd")
    assert turn["status"] == "finished" or turn["error"]["code"] == "agent_error"
    assert service.steps(turn)
    assert service.follow_up(turn, {"say": "on"})["reply"] == "on"


def test_a_carried_class_lives_as_long_as_it_is_declared(tmp_path: Path) -> None:
    carried = {"AGENTS": "it=tests.support.agents:make_carrier", "DEMO_AGENTS": "0"}
    with Service(tmp_path, carried) as service:
        turn = service.play({"code": "make(what='money')"}, {"say": "paid"}, agent="it")
        assert service.steps(turn)[1]["output"] == {"amount": 7, "currency": "EUR"}
    with Service(tmp_path, carried | {"AGENTS": "it=tests.support.agents:make_code"}) as service:
        refused = service.follow_up(turn, {"say": "on"})
        assert (refused["status"], refused["error"]["code"]) == ("failed", "seal_broken")
        assert "tests.support.agents.Money" in refused["error"]["message"]
        listed = service.client.get(f"/conversations/{turn['conversation_id']}/steps")
        assert (listed.status_code, listed.json()["code"]) == (500, "seal_broken")
    with Service(tmp_path, carried) as service:
        assert service.follow_up(turn, {"say": "on"})["reply"] == "on"


CROWDS: list[str] = PROGRAMS["endless"]


@pytest.mark.parametrize("code", mostly_deep(CROWDS, fast=[CROWDS[0], CROWDS[4]]))
def test_an_endless_value_does_not_block_a_turn(service: Service, code: str) -> None:
    body = {"agent": "code", "message": json.dumps([{"code": f"{code}\nfinal_answer(x)"}])}
    response = service.client.post("/turn", json=body, headers={"Prefer": "wait=100"})
    turn = response.json()
    assert (response.status_code, turn["status"]) == (200, "finished")
    assert len(response.content) < 50_000_000
    assert service.steps(turn)
    assert service.follow_up(turn, {"say": "on"})["reply"] == "on"


WRONG_FIELDS = "error tool_calls timing observations_images step_number token_usage".split()
WRONG_FIELDS += "model_output model_output_message code_action is_final_answer".split()


@pytest.mark.parametrize("field", WRONG_FIELDS)
@pytest.mark.parametrize("is_edit", [False, True])
def test_a_value_of_a_wrong_type_is_replaced_in_the_step_and_in_the_store(field: str, *, is_edit: bool) -> None:
    step = ActionStep(step_number=1, timing=Timing(1.0, 2.0), observations="seen")
    setattr(step, field, [1])
    packed = pack(EditStep(step=step) if is_edit else step, 1)
    back: Any = unpack(packed.data, packed.attachments)
    for one in (step, back.step if is_edit else back):
        found = described([one])[0]
        assert (found["observations"], found["tool_calls"], found["images"]) == ("seen", [], [])
        assert (found["is_final_answer"], type(found["step"])) == (False, int)
        assert one.to_messages()


def test_a_wrong_image_leaves_the_others_in_a_step_that_is_not_stored() -> None:
    step = action(observations_images=[PIL.Image.new("L", (2, 1), 7), "no image"])
    repair(step)
    assert [image.getpixel((0, 0)) for image in step.observations_images or ()] == [7]
