"""Load on two services whose store fails over, and the checks afterwards."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.service import CODELESS, Service
from tests.support.streaming import Event, Patient
from tests.support.turns import DONE, ECHO, wait_until_back

REPLICATED = CODELESS | {"DURABILITY": "replicated"}
LOAD = 12
Pair = tuple[Service, Service]
SECRET, SECOND_SECRET = "hunter2", "sword/fi:sh"
KEY_PATTERNS = "~{p* &{p*"
RIGHTS = "+@read +@write +@pubsub -@dangerous +evalsha +script|load +info +time +wait +cluster|slots"


def play_some(service: Service, number: int = LOAD, agent: str = "scripted") -> list[Event]:
    with ThreadPoolExecutor(8) as pool:
        patients = [Patient([service], [{"say": "one"}], agent) for _ in range(number)]
        return [patient.result for patient in pool.map(Patient.play, patients)]


def load(pair: Pair, number: int = LOAD, **body: Any) -> list[Patient]:
    """Return turns that take two seconds or more, half of them submitted to each service."""
    script = [ECHO, slow_step(), ECHO, slow_step(), ECHO, DONE]
    return [Patient(pair if at % 2 else pair[::-1], script, body=body) for at in range(number)]


def slow_step() -> Event:
    """Return a step that is a parse error, told in pieces for 0.8 s, and for longer the more a machine is loaded."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return {"text": "x" * 60, "pace_s": 0.04 * min(max(1.0, waiting), 10.0)}


def all_have_begun(patients: list[Patient]) -> bool:
    return all(any(frame.event == "step.finished" for frame in patient.frames) for patient in patients)


def assert_all_go_on(pair: Pair, turns: list[Event]) -> None:
    """Check that conversations take turns again, at either service, and that no service was restarted."""
    assert all(service.process.poll() is None for service in pair)
    with ThreadPoolExecutor(8) as pool:
        patients = [Patient(pair, [DONE], t["agent"]["name"], {"conversation_id": t["conversation_id"]}) for t in turns]
        for patient in pool.map(Patient.play, patients):
            assert patient.result["reply"] == "done"


def check_all(pair: Pair, patients: list[Patient]) -> None:
    """Check that turns of `load` lost nothing, and that none of their readers had to reconnect."""
    for service in pair:  # turns end once one of the two services has recovered
        wait_until_back(service)
    for number, patient in enumerate(patients):
        patient.check(pair[number % 2])
        assert (patient.result["status"], patient.result["step_count"]) == ("finished", 6)
        assert patient.breaks == 0
