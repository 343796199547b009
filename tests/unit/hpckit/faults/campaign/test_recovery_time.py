"""Where the time after a fault went: events by hand, seconds that one can add up."""

from __future__ import annotations

import pytest

from hpckit.events.event_log import Event
from hpckit.events.schema import StepLogged, event_of
from hpckit.faults.campaign.fault_log import RecordedFault
from hpckit.faults.campaign.recovery_time import RecoveryTime, recovery_time
from hpckit.faults.fault_plan import DrillKind
from hpckit.report.ettr import training_share

KILLED = RecordedFault(100.0, DrillKind.WORKER, 50, "SIGKILL")


def step(time: float, number: int) -> StepLogged:
    return StepLogged(time=time, step=number, step_s=1.0)


def event(time: float, kind: str, **fields: object) -> Event:
    return event_of(time, kind, fields)


RESTART = [
    event(99.0, "step", step=50),
    event(100.5, "worker_lost", step=50),
    event(102.0, "worker_started"),
    event(102.5, "worker_started"),
    event(104.0, "training_started", step=40),
    event(104.5, "step", step=41),
    event(109.0, "step", step=50),
    event(109.5, "step", step=51),
]


def test_a_restart_is_split() -> None:
    found = recovery_time(RESTART, KILLED)
    assert found == RecoveryTime(detect=0.5, queue=0.0, meet=2.0, load=1.5, recompute=5.5)
    assert found.total == 9.5


def test_what_a_later_fault_took_is_not_told_of_an_earlier_one() -> None:
    slow = RecordedFault(99.5, DrillKind.SLOW, 50, "a tenth of the time")
    assert recovery_time(RESTART, slow, until=100.0) is None
    assert recovery_time(RESTART, slow) is not None


def test_time_in_the_queue_is_told_apart() -> None:
    events = [
        event(100.2, "asked"),
        event(103.0, "generation_ended"),
        event(103.5, "run_ended"),
        event(110.0, "run_started"),
        event(112.0, "worker_started"),
        event(113.0, "training_started"),
        event(114.0, "step", step=51),
    ]
    struck = RecordedFault(100.0, DrillKind.PREEMPT, 50, "SIGTERM")
    found = recovery_time(events, struck)
    assert found is not None
    assert (found.queue, found.total) == (6.5, 14.0)
    assert found.meet == pytest.approx(112.0 - 100.2 - 6.5)


def test_clocks_of_hosts_that_differ_make_no_part_negative() -> None:
    early = [event(100.2, "worker_started"), event(100.4, "worker_started"), *RESTART[1:2]]
    found = recovery_time([*early, *RESTART[4:]], KILLED)
    assert found is not None
    assert (found.meet, found.queue, found.total) == (0.0, 0.0, 9.5)
    back = [
        *(event(100.1, "generation_ended"), event(101.0, "worker_started")),
        *(event(101.4, "run_started"), *RESTART[4:]),
    ]
    found = recovery_time(back, KILLED)
    assert found is not None
    assert (found.meet, found.total) == (0.0, 9.5)


@pytest.mark.parametrize("events", [RESTART[:4], RESTART[:7], []])
def test_what_was_not_come_through_has_no_split(events: list[Event]) -> None:
    assert recovery_time(events, KILLED) is None


def test_the_share_of_training_counts_each_step_once() -> None:
    steps = [step(float(at), at) for at in range(11)]
    assert training_share(steps, 1.0) == 1.0
    again = [*steps[:6], *(step(one.time + 5, one.step - 3) for one in steps[6:])]
    assert training_share(again, 1.0) == pytest.approx(7 / 15)
    assert training_share(steps[:1], 1.0) == 0.0
