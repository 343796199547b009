"""The successor of a job: queued in the background, cancelled unless it is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpckit.launch import chain as module
from hpckit.launch.chain import Chain, come_again, silent_jobs
from hpckit.run.events import Event, EventLog, read_events
from tests.unit.hpckit.hpckit_parts import until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a scancel that writes down what it is asked, and fails if there is a file `down`."""
    (tmp_path / "scancel").write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n! [ -e {tmp_path}/down ]\n'
    )
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    return tmp_path


@pytest.fixture
def events(folder: Path) -> Iterator[EventLog]:
    with EventLog(folder / "events.jsonl") as log:
        yield log


def kinds(folder: Path) -> list[str]:
    return [event.kind for event in read_events(folder / "events.jsonl")]


def test_a_successor_that_is_not_kept_is_cancelled(folder: Path, events: EventLog) -> None:
    with Chain(lambda: "8", events) as chain:
        until(lambda: chain.job == "8")
    assert (folder / "asked").read_text() == "--state=PENDING 8\n"
    assert kinds(folder) == ["successor_queued", "successor_cancelled"]


def test_one_that_is_kept_stays(folder: Path, events: EventLog) -> None:
    amended: list[tuple[str, float]] = []
    with Chain(lambda: "8", events, lambda *told: amended.append(told)) as chain:
        assert chain.keep(30)
    assert amended == [("8", 30)]
    assert not (folder / "asked").exists()
    assert kinds(folder) == ["successor_queued"]


def test_it_is_cancelled_when_the_supervisor_fails(folder: Path, events: EventLog) -> None:
    """Or it would fail in the same way, and its successor, for ever."""
    chain = Chain(lambda: "8", events)

    def supervise() -> None:
        with chain:
            until(lambda: chain.job == "8")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        supervise()
    assert (folder / "asked").read_text() == "--state=PENDING 8\n"


@pytest.mark.parametrize("error", [OSError("no sbatch"), RuntimeError("controller is down")])
def test_what_fails_is_tried_again(folder: Path, events: EventLog, error: Exception) -> None:
    tries = iter([error, error, None])

    def queue() -> str:
        if (problem := next(tries)) is not None:
            raise problem
        return "9"

    with Chain(queue, events) as chain:
        until(lambda: chain.job == "9")
        assert chain.keep(0)


def test_without_a_successor_one_is_told_so(folder: Path, events: EventLog) -> None:
    hangs = threading.Event()

    def queue() -> str:
        hangs.wait(30)
        raise OSError("too late")

    with Chain(queue, events) as chain:
        assert not chain.keep(0.1)
        hangs.set()
    (event,) = read_events(folder / "events.jsonl")
    assert event["what"].startswith("no job is queued to go on")


def test_one_that_cannot_be_cancelled_is_not_said_to_be(folder: Path, events: EventLog) -> None:
    (folder / "down").touch()
    with Chain(lambda: "8", events) as chain:
        until(lambda: chain.job == "8")
    assert kinds(folder) == ["successor_queued"]


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
    events = [Event(float(at), names[letter], {}) for at, letter in enumerate(story)]
    assert silent_jobs(events) == count


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
    come_again("7", events, within_s=30 if refusals < 9 else 0.05)
    asked = (folder / "asked").read_text().splitlines()
    assert set(asked) == {"requeue 7"}
    assert refusals > 9 or len(asked) == refusals + 1
    assert kinds(folder) == [told]


def test_what_a_person_has_requeued_is_not_requeued_again(folder: Path, events: EventLog) -> None:
    (folder / "scontrol").write_text(
        '#!/bin/sh\n[ "$1" != requeue ] && echo "JobId=7 Restarts=1"\n'
    )
    (folder / "scontrol").chmod(0o755)
    come_again("7", events, within_s=30)
    assert kinds(folder) == ["job_requeued"]
