"""Signals to the supervisor: what they ask for, before and after Slurm has told who sent them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.supervisor.signal_requests import SupervisorRequests
from tests.unit.hpckit.specs_and_processes import until

SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)  # that a supervisor takes over


@pytest.fixture
def requests() -> Iterator[SupervisorRequests]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield SupervisorRequests()
    for number, handler in before.items():
        signal.signal(number, handler)


def nobody() -> bool:
    return False


@pytest.mark.parametrize(
    ("number", "asked"),
    [
        (signal.SIGUSR2, WorkerRequest.PREEMPT),
        (signal.SIGTERM, WorkerRequest.PREEMPT),
        (signal.SIGINT, WorkerRequest.STOP),
    ],
)
def test_each_asks_for_something(
    requests: SupervisorRequests, number: int, asked: WorkerRequest
) -> None:
    assert requests.hear((), nobody) is WorkerRequest.NONE
    assert not requests.has_any()
    os.kill(os.getpid(), number)
    assert requests.has_any(), "though nobody has looked"
    assert requests.hear((), nobody) is asked
    assert requests.settled() is asked
    assert requests.has_any()
    requests.end(asked)
    assert requests.hear((), nobody) is WorkerRequest.NONE
    assert not requests.has_any()


@pytest.mark.parametrize("through_an_agent", [False, True])
def test_nobody_waits_for_slurm_to_say_that_it_was_a_person(
    requests: SupervisorRequests, through_an_agent: bool
) -> None:
    answers = threading.Event()

    def is_cancelled() -> bool:
        return answers.wait(30)

    names = {"SIGTERM"} if through_an_agent else set()
    if not through_an_agent:
        os.kill(os.getpid(), signal.SIGTERM)
    assert requests.hear(names, is_cancelled) is WorkerRequest.PREEMPT
    assert requests.hear((), is_cancelled) is WorkerRequest.PREEMPT
    answers.set()
    assert requests.settled() is WorkerRequest.STOP
    assert requests.hear((), is_cancelled) is WorkerRequest.STOP


def test_a_person_may_come_after_the_scheduler(requests: SupervisorRequests) -> None:
    """And of the same signal through many agents, one question is put at a time."""
    asked: list[bool] = []
    answers = threading.Event()

    def is_cancelled() -> bool:
        asked.append(True)
        answers.wait(30)
        return len(asked) > 1

    requests.hear({"SIGTERM"}, is_cancelled)
    until(lambda: len(asked) == 1)
    for _ in range(5):
        requests.hear({"SIGTERM"}, is_cancelled)
    answers.set()
    assert requests.settled() is WorkerRequest.STOP
    assert len(asked) == 2


def test_an_answer_that_fails_leaves_it_a_preemption(requests: SupervisorRequests) -> None:
    def is_cancelled() -> bool:
        raise OSError("no such folder")

    requests.hear({"SIGTERM"}, is_cancelled)
    assert requests.settled() is WorkerRequest.PREEMPT


def test_what_comes_after_one_was_carried_out_is_still_to_be(requests: SupervisorRequests) -> None:
    assert requests.hear({"SIGUSR2"}, nobody) is WorkerRequest.PREEMPT
    os.kill(os.getpid(), signal.SIGINT)
    requests.end(WorkerRequest.PREEMPT)
    assert requests.hear((), nobody) is WorkerRequest.STOP
