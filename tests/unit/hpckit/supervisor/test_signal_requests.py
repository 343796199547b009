"""Tests of the requests that signals make, before and after Slurm answers who sent them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.supervisor.signal_requests import SupervisorRequests
from tests.unit.hpckit.specs_and_processes import until

SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)  # that a supervisor takes over


Requests = Callable[..., SupervisorRequests]


def nobody() -> bool:
    return False


@pytest.fixture
def make_requests() -> Iterator[Requests]:
    """Returns the constructor, whose query of Slurm by default finds no person; the handlers that
    it replaces are restored after the test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def make(is_cancelled: Callable[[], bool] = nobody) -> SupervisorRequests:
        return SupervisorRequests(is_cancelled)

    yield make
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "asked"),
    [
        (signal.SIGUSR2, WorkerRequest.PREEMPT),
        (signal.SIGTERM, WorkerRequest.PREEMPT),
        (signal.SIGINT, WorkerRequest.STOP),
    ],
)
def test_each_signal_makes_a_request(
    make_requests: Requests, number: int, asked: WorkerRequest
) -> None:
    requests = make_requests()
    assert requests.update(()) is WorkerRequest.NONE
    assert not requests.has_any()
    os.kill(os.getpid(), number)
    assert requests.has_any(), "though no update has handled the signal"
    assert requests.update(()) is asked
    assert requests.wait_until_known() is asked
    assert requests.has_any()
    requests.complete(asked)
    assert requests.update(()) is WorkerRequest.NONE
    assert not requests.has_any()


@pytest.mark.parametrize("preemption", ["SIGUSR2", "SIGTERM"])
def test_a_preemption_does_not_override_an_earlier_stop(
    make_requests: Requests, preemption: str
) -> None:
    requests = make_requests()
    assert requests.update({"SIGINT"}) is WorkerRequest.STOP
    assert requests.update({preemption}) is WorkerRequest.STOP
    assert requests.wait_until_known() is WorkerRequest.STOP
    requests.complete(WorkerRequest.PREEMPT)
    assert requests.update(()) is WorkerRequest.STOP, "it is not carried out by a preemption"


@pytest.mark.parametrize("preemption", ["SIGUSR2", "SIGTERM"])
def test_of_two_signals_at_once_the_stop_counts(make_requests: Requests, preemption: str) -> None:
    assert make_requests().update({"SIGINT", preemption}) is WorkerRequest.STOP


@pytest.mark.parametrize("through_an_agent", [False, True])
def test_a_request_does_not_wait_for_the_answer_of_slurm(
    make_requests: Requests, through_an_agent: bool
) -> None:
    answers = threading.Event()
    requests = make_requests(lambda: answers.wait(300))
    names = {"SIGTERM"} if through_an_agent else set()
    if not through_an_agent:
        os.kill(os.getpid(), signal.SIGTERM)
    assert requests.update(names) is WorkerRequest.PREEMPT
    assert requests.update(()) is WorkerRequest.PREEMPT
    answers.set()
    assert requests.wait_until_known() is WorkerRequest.STOP
    assert requests.update(()) is WorkerRequest.STOP


def test_a_person_may_cancel_after_a_preemption(make_requests: Requests) -> None:
    """Of the same signal through many agents, one query is made at a time."""
    asked: list[bool] = []
    answers = threading.Event()

    def is_cancelled() -> bool:
        asked.append(True)
        answers.wait(300)
        return len(asked) > 1

    requests = make_requests(is_cancelled)
    requests.update({"SIGTERM"})
    until(lambda: len(asked) == 1)
    for _ in range(5):
        requests.update({"SIGTERM"})
    answers.set()
    assert requests.wait_until_known() is WorkerRequest.STOP
    assert len(asked) == 2


def test_a_failed_query_leaves_the_request_a_preemption(make_requests: Requests) -> None:
    def is_cancelled() -> bool:
        raise OSError("no such folder")

    requests = make_requests(is_cancelled)
    requests.update({"SIGTERM"})
    assert requests.wait_until_known() is WorkerRequest.PREEMPT


def test_a_stronger_request_during_an_earlier_one_is_still_to_be_carried_out(
    make_requests: Requests,
) -> None:
    requests = make_requests()
    assert requests.update({"SIGUSR2"}) is WorkerRequest.PREEMPT
    os.kill(os.getpid(), signal.SIGINT)
    requests.complete(WorkerRequest.PREEMPT)
    assert requests.update(()) is WorkerRequest.STOP
