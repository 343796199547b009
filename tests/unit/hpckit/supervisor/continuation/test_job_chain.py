"""The successor of a job: queued in the background, cancelled unless it is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpckit.events.event_log import Event, EventLog, read_events
from hpckit.events.schema import event_of
from hpckit.supervisor.continuation import job_chain as module
from hpckit.supervisor.continuation.job_chain import JobChain, requeue_job, silent_jobs
from tests.unit.hpckit.specs_and_processes import until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a scancel that writes down what it is asked, and fails if there is a file `down`."""
    (tmp_path / "scancel").write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n! [ -e {tmp_path}/down ]\n'
    )
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    return tmp_path


@pytest.fixture
def events(folder: Path) -> Iterator[EventLog]:
    with EventLog(folder / "events.jsonl") as log:
        yield log


def kinds(folder: Path) -> list[str]:
    return [event.kind for event in read_events(folder / "events.jsonl")]


def test_a_successor_that_is_not_kept_is_cancelled(folder: Path, events: EventLog) -> None:
    with JobChain(lambda: "8", events) as chain:
        until(lambda: chain.job == "8")
    assert (folder / "asked").read_text() == "--state=PENDING 8\n"
    assert kinds(folder) == ["successor_queued", "successor_cancelled"]


def test_one_that_is_kept_stays(folder: Path, events: EventLog) -> None:
    amended: list[tuple[str, float]] = []
    with JobChain(lambda: "8", events, lambda *told: amended.append(told)) as chain:
        assert chain.keep(30)
    assert amended == [("8", 30)]
    assert not (folder / "asked").exists()
    assert kinds(folder) == ["successor_queued"]


def test_it_is_kept_when_the_supervisor_fails(folder: Path, events: EventLog) -> None:
    """What it failed of may pass; jobs that fail in a row are counted."""
    chain = JobChain(lambda: "8", events)

    def supervise() -> None:
        with chain:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        supervise()
    assert not (folder / "asked").exists()
    assert kinds(folder) == ["successor_queued"]


def test_it_is_cancelled_though_the_supervisor_fails_once_nothing_is_to_go_on(
    folder: Path, events: EventLog
) -> None:
    chain = JobChain(lambda: "8", events)

    def supervise() -> None:
        with chain:
            chain.drop()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        supervise()
    assert kinds(folder) in ([], ["successor_queued", "successor_cancelled"])


def test_one_that_is_not_wanted_any_more_is_cancelled_long_before_the_end(
    folder: Path, events: EventLog
) -> None:
    """A person's `scancel` leaves this process little time; Slurm may not answer at once."""
    (folder / "down").touch()
    with JobChain(lambda: "8", events) as chain:
        until(lambda: chain.job == "8")
        chain.drop()
        until(lambda: (folder / "asked").exists())
        assert kinds(folder) == ["successor_queued"]
        (folder / "down").unlink()
        until(lambda: kinds(folder) == ["successor_queued", "successor_cancelled"])


def test_one_that_is_gone_is_not_asked_for_again(folder: Path, events: EventLog) -> None:
    (folder / "scancel").write_text(
        f"#!/bin/sh\necho $* >> {folder}/asked\necho Invalid job id specified >&2\nexit 1\n"
    )
    with JobChain(lambda: "8", events) as chain:
        until(lambda: chain.job == "8")
    assert (folder / "asked").read_text() == "--state=PENDING 8\n"


@pytest.mark.parametrize("error", [OSError("no sbatch"), RuntimeError("controller is down")])
def test_what_fails_is_tried_again(folder: Path, events: EventLog, error: Exception) -> None:
    tries = iter([error, error, None])

    def queue() -> str:
        if (problem := next(tries)) is not None:
            raise problem
        return "9"

    with JobChain(queue, events) as chain:
        until(lambda: chain.job == "9")
        assert chain.keep(0)
    refused, queued = read_events(folder / "events.jsonl")  # told once
    assert queued["job"] == "9"
    assert refused["what"].endswith(str(error))


def test_a_job_that_leaves_tries_at_once(
    folder: Path, events: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the next try was to wait."""
    monkeypatch.setattr(module, "RETRY_S", 3600.0)
    tries = iter([OSError("busy"), OSError("still busy"), None])

    def queue() -> str:
        if (problem := next(tries)) is not None:
            raise problem
        return "9"

    with JobChain(queue, events) as chain:
        until(lambda: kinds(folder) == ["degraded"])
        assert chain.keep(30)
    assert kinds(folder) == ["degraded", "successor_queued"]


def test_one_that_slurm_took_without_saying_so_is_found(folder: Path, events: EventLog) -> None:
    def queue() -> str:
        raise RuntimeError("Socket timed out on send/recv operation")

    with JobChain(queue, events, find=lambda: "9") as chain:
        until(lambda: chain.job == "9")
        assert chain.keep(0)


def test_without_a_successor_one_is_told_so(folder: Path, events: EventLog) -> None:
    hangs = threading.Event()

    def queue() -> str:
        hangs.wait(30)
        raise OSError("too late")

    with JobChain(queue, events) as chain:
        assert not chain.keep(0.1)
        hangs.set()
    whats = [event["what"] for event in read_events(folder / "events.jsonl")]
    assert whats[0].startswith("no successor job is queued")
    assert whats[1:] in ([], [whats[-1]])  # the try that was under way may fail yet


def test_one_that_cannot_be_cancelled_is_not_said_to_be(
    folder: Path, events: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    (folder / "down").touch()
    with JobChain(lambda: "8", events) as chain:
        until(lambda: chain.job == "8")
    queued, degraded = read_events(folder / "events.jsonl")
    assert queued.kind == "successor_queued"
    assert "scancel 8" in degraded["what"]
    (folder / "down").unlink()  # for the thread that is left
    until(lambda: not chain._thread.is_alive())


@pytest.mark.parametrize(
    ("story", "count"),
    [
        ("S", 0),
        ("SES", 0),
        ("SCS", 0),
        ("SSS", 2),
        ("SESSS", 2),
        ("SSCSSSS", 3),
        ("SSSE", 0),
        ("", 0),
    ],
)
def test_jobs_that_were_killed_before_they_had_anything_are_counted(story: str, count: int) -> None:
    names = {"S": "run_started", "E": "run_ended", "C": "checkpoint_committed"}
    events = [event_of(0.0, "successor_queued", {"job": "1"})] if story else []
    events += [
        event_of(float(at), names[letter], {"job": "1"}) for at, letter in enumerate(story, start=1)
    ]
    assert silent_jobs(events) == count


def test_those_before_a_person_has_started_the_run_again_are_not() -> None:
    def begins(job: str) -> list[Event]:
        successor = str(int(job) + 1)
        return [
            event_of(float(job), "run_started", {"job": job}),
            event_of(float(job), "successor_queued", {"job": successor}),
        ]

    killed = [event for job in ("1", "2", "3") for event in begins(job)]
    assert silent_jobs([*killed, *begins("4")]) == 3
    assert silent_jobs([*killed, *begins("7")]) == 0
    assert silent_jobs([*killed, *begins("7"), *begins("8")]) == 1


@pytest.mark.parametrize(
    ("refusals", "told"), [(0, "job_requeued"), (1, "job_requeued"), (99, "degraded")]
)
def test_a_requeue_is_tried_again(
    folder: Path, events: EventLog, monkeypatch: pytest.MonkeyPatch, refusals: int, told: str
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    (folder / "scontrol").write_text(
        f'#!/bin/sh\n[ "$1" = requeue ] || exit 1\necho "$*" >> {folder}/asked\n'
        f"[ $(wc -l < {folder}/asked) -gt {refusals} ]\n"
    )
    (folder / "scontrol").chmod(0o755)
    requeue_job("7", events, within_s=120 if refusals < 9 else 0.05)
    asked = (folder / "asked").read_text().splitlines()
    assert set(asked) == {"requeue 7"}
    assert refusals > 9 or len(asked) == refusals + 1
    assert kinds(folder) == [told]


def test_what_a_person_has_requeued_is_not_requeued_again(folder: Path, events: EventLog) -> None:
    (folder / "scontrol").write_text(
        '#!/bin/sh\n[ "$1" != requeue ] && echo "JobId=7 Restarts=1"\n'
    )
    (folder / "scontrol").chmod(0o755)
    requeue_job("7", events, within_s=120)
    assert kinds(folder) == ["job_requeued"]
