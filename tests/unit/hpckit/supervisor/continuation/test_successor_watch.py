"""What becomes of a successor job that waits in the queue, and what the chain does about it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from hpckit.events.event_log import EventLog, read_events
from hpckit.slurm.squeue import parse_queue
from hpckit.supervisor.continuation import job_chain as module
from hpckit.supervisor.continuation.job_chain import MOST_REPLACED, JobChain
from hpckit.supervisor.continuation.successor_watch import (
    SuccessorFate,
    SuccessorState,
    is_trustworthy,
    judge_successor,
    parse_memory_s,
)
from tests.unit.hpckit.specs_and_processes import until

WAITS, BLOCKED, CANCELLED, LOST, NEVER = SuccessorFate
LINE = "{}|{}|N/A|N/A|1:00|1|low||{}|{}|name\n"


@pytest.mark.parametrize(
    ("job", "state", "reason", "fate"),
    [
        ("8", "PENDING", "Dependency", WAITS),
        ("8", "PENDING", "Priority", WAITS),
        ("8", "PENDING", "ReqNodeNotAvail, UnavailableNodes:n1", WAITS),
        ("8", "PENDING", "JobHeldUser", BLOCKED),
        ("8", "PENDING", "JobHeldAdmin", BLOCKED),
        ("8", "RESV_DEL_HOLD", "ReservationDeleted", BLOCKED),
        ("8", "PENDING", "BadConstraints", BLOCKED),
        ("8", "PENDING", "PartitionDown", BLOCKED),
        ("8", "PENDING", "DependencyNeverSatisfied", NEVER),
        ("8", "CANCELLED", "DependencyNeverSatisfied", NEVER),
        ("8", "CANCELLED", "None", CANCELLED),
        ("8", "CANCELLED", "Dependency", CANCELLED),
        ("8", "DEADLINE", "DeadLine", LOST),
        ("8", "FAILED", "NonZeroExitCode", LOST),
        ("8", "RUNNING", "None", WAITS),
        ("8", "REVOKED", "None", WAITS),
        ("7", "PENDING", "JobHeldUser", LOST),
    ],
)
def test_the_queue_tells_what_has_become_of_it(
    job: str, state: str, reason: str, fate: SuccessorFate
) -> None:
    jobs = parse_queue(LINE.format(job, state, "", reason))
    found = judge_successor("8", jobs, 150.0, lambda: 300.0)
    assert found.fate is fate
    assert (found.reason != "") is (fate is not WAITS)
    assert "JOB" not in found.advice
    assert (found.advice != "") is (fate is BLOCKED)


@pytest.mark.parametrize(
    ("age", "unseen_s", "fate"),
    [
        ("300 sec", 180.0, LOST),
        ("0 sec", 1e6, LOST),  # it forgets none
        ("300 sec", 290.0, CANCELLED),
        ("2 sec", 150.0, CANCELLED),
        ("", 1.0, CANCELLED),
    ],
)
def test_a_job_that_slurm_may_have_forgotten_after_a_cancellation_is_not_replaced(
    age: str, unseen_s: float, fate: SuccessorFate
) -> None:
    memory_s = parse_memory_s(f"MaxJobCount = 10000\nMinJobAge               = {age}\n")
    assert judge_successor("8", [], unseen_s, lambda: memory_s).fate is fate


@pytest.mark.parametrize(
    ("own", "is_trusted"),
    [
        (("7", "RUNNING"), True),
        (("7", "COMPLETING"), True),
        (("7", "NODE_FAIL"), False),  # Slurm has given it up
        (("9", "RUNNING"), False),  # the answer lacks this job
    ],
)
def test_nothing_is_done_on_an_answer_that_lacks_this_job(
    own: tuple[str, str], is_trusted: bool
) -> None:
    jobs = parse_queue(LINE.format(*own, "", "None"))
    for fate in SuccessorFate:
        found = is_trustworthy(SuccessorState(fate), jobs, "7")
        assert found is (is_trusted or fate in (WAITS, BLOCKED))
        assert is_trustworthy(SuccessorState(fate), [], "7") is (fate in (WAITS, BLOCKED))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scancel").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n')
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("AGAIN_S", "WATCH_S"):
        monkeypatch.setattr(module, name, 0.01)
    return tmp_path


@pytest.fixture
def events(folder: Path) -> Iterator[EventLog]:
    with EventLog(folder / "events.jsonl") as log:
        yield log


def told(folder: Path) -> list[tuple[str, str]]:
    found = read_events(folder / "events.jsonl")
    return [(event.kind, event.get("job") or event.get("subject")) for event in found]


def watched(events: EventLog, states: dict[str, SuccessorState]) -> JobChain:
    """A chain of the jobs 1, 2, and so on, of which the named ones are in these states."""
    numbers = map(str, count(1))
    waits = SuccessorState(WAITS)
    return JobChain(
        lambda: next(numbers), events, look=lambda job, unseen_s: states.get(job, waits)
    )


def test_one_that_somebody_cancelled_is_not_replaced_and_that_is_said(
    folder: Path, events: EventLog
) -> None:
    with watched(events, {"1": SuccessorState(CANCELLED, "job 1 was cancelled")}) as chain:
        until(lambda: len(told(folder)) == 3)
        assert not chain.keep(3600)
        assert chain.job is None
    kinds = ["successor_queued", "successor_cancelled", "degraded", "degraded"]
    assert [kind for kind, _ in told(folder)] == kinds
    assert not (folder / "asked").exists()
    first, last = (e for e in read_events(folder / "events.jsonl") if e.kind == "degraded")
    assert first["what"].startswith("job 1 was cancelled: no other one is queued; hpckit resume")
    assert last["what"].endswith("job 1 was cancelled")


def test_one_that_is_lost_or_can_never_start_is_replaced(folder: Path, events: EventLog) -> None:
    lost, never = SuccessorState(LOST, "job 1 is gone"), SuccessorState(NEVER, "it waits")
    with watched(events, {"1": lost, "2": never}) as chain:
        until(lambda: chain.job == "3")
        assert chain.keep(0)
    assert told(folder) == [
        *(("successor_queued", "1"), ("successor_cancelled", "1")),
        *(("successor_queued", "2"), ("successor_cancelled", "2")),
        ("successor_queued", "3"),
    ]
    assert (folder / "asked").read_text() == "--state=PENDING 2\n"


def test_one_that_is_lost_is_not_replaced_beside_another_one(
    folder: Path, events: EventLog
) -> None:
    def look(job: str, unseen_s: float) -> SuccessorState:
        return SuccessorState(LOST if job == "1" else WAITS, "job 1 is gone")

    numbers = iter(["1"])
    with JobChain(lambda: next(numbers), events, find=lambda: "44", look=look) as chain:
        until(lambda: chain.job == "44")
        assert chain.keep(0)


def test_a_site_that_loses_each_successor_gets_only_a_few(folder: Path, events: EventLog) -> None:
    states = {str(n): SuccessorState(LOST, f"job {n} is gone") for n in range(99)}
    with watched(events, states) as chain:
        until(lambda: ("degraded", "successor") in told(folder))
        assert not chain.keep(0)
    assert [kind for kind, _ in told(folder)].count("successor_queued") == MOST_REPLACED + 1


def test_one_that_is_blocked_is_reported_once_for_each_reason(
    folder: Path, events: EventLog
) -> None:
    states = {"1": SuccessorState(BLOCKED, "JobHeldUser", "release it")}
    with watched(events, states) as chain:
        until(lambda: told(folder)[1:] == [("successor_blocked", "1")])
        states["1"] = SuccessorState(BLOCKED, "PartitionDown", "wait")
        until(lambda: told(folder)[2:] == [("successor_blocked", "1")])
        states["1"] = SuccessorState(WAITS)
        until(lambda: told(folder)[3:] == [("successor_unblocked", "1")])
        assert chain.keep(0)


def test_a_review_finds_what_the_queue_does_not_tell(folder: Path, events: EventLog) -> None:
    found: list[SuccessorState | None] = [SuccessorState(BLOCKED, "no such reservation", "x")]
    chain = JobChain(
        lambda: "1",
        events,
        review=lambda job: found[0],
        look=lambda job, unseen_s: SuccessorState(WAITS),
    )
    with chain:
        until(lambda: told(folder)[1:] == [("successor_blocked", "1")])
        found[0] = None
        until(lambda: told(folder)[2:] == [("successor_unblocked", "1")])
        assert chain.keep(0)
