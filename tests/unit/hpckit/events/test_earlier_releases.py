"""Event files of earlier releases are read, and say of their runs what those releases said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from checkpointing.events import CheckpointCommitted
from hpckit.events.event_log import Event, EventLog, read_events
from hpckit.events.event_validation import ValidatedEvents, read_valid_events
from hpckit.events.schema import Degraded, DegradedSubject, StepLogged, UnknownEvent, event_of
from hpckit.exporter.run_metrics import RunMetrics
from hpckit.report.history import build_history
from hpckit.report.overview import Queue, read_overview
from hpckit.report.performance.measured_step_time import step_time
from hpckit.report.progress import build_progress
from hpckit.report.run_state import RunState
from hpckit.report.why import explain_run
from hpckit.rundir.directory import RunDir
from hpckit.slurm.node_exclusion import excludable_nodes
from hpckit.supervisor.continuation.predecessor_job import former_job
from hpckit.supervisor.verdict import past_of
from tests.unit.hpckit.report.sample_runs import submitted

FILES = Path(__file__).parent / "releases"
RELEASES = ("first", "chains", "present")
"""The first one that trained, one with chains of jobs, and this one, each by its emitters."""


def valid(tmp_path: Path, release: str) -> ValidatedEvents:
    run = RunDir(tmp_path)
    run.events.write_bytes((FILES / f"{release}.jsonl").read_bytes())
    return read_valid_events(run)


@pytest.mark.parametrize("release", RELEASES)
def test_every_line_is_an_event_and_its_fields_come_back(tmp_path: Path, release: str) -> None:
    lines = (FILES / f"{release}.jsonl").read_text().splitlines()
    found = valid(tmp_path, release)
    assert (len(found.events), found.torn, found.unsound) == (len(lines), 0, 0)
    for event in read_events(FILES / f"{release}.jsonl"):
        told = {key: value for key, value in event.fields.items() if value is not None}
        record = {"time": event.time, "kind": event.kind, **told}
        assert record in [{k: v for k, v in json.loads(o).items() if v is not None} for o in lines]


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_read_is_written_again_as_it_was(tmp_path: Path, release: str) -> None:
    with EventLog(tmp_path / "again.jsonl") as log:
        for event in read_events(FILES / f"{release}.jsonl"):
            log.emit(event)
    again = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    before = [json.loads(line) for line in (FILES / f"{release}.jsonl").read_text().splitlines()]
    assert sorted(again, key=str) == sorted(before, key=str)


def test_a_run_of_the_first_release(tmp_path: Path) -> None:
    events = valid(tmp_path, "first").events
    progress = build_progress(events)
    assert (progress.step, progress.steps, progress.saved_step) == (12, 12, 12)
    assert (progress.ended, progress.ranks, progress.nodes) == ("done", 2, 2)
    assert progress.interruptions == {"worker lost": 1}
    assert progress.degraded == "no GPU here: on the CPU"
    assert progress.no_successor is None
    history = build_history(events)
    assert [(life.start_step, life.end_step, life.end) for life in history.lives] == [
        (0, 6, "worker lost"),
        (4, 12, "done"),
    ]
    assert [event["step"] for event in history.repeated] == [5, 6]
    assert history.record()["checkpoints"] == [4, 12]
    assert step_time(history).steps == 12
    unknown = {event.kind for event in events if isinstance(event, UnknownEvent)}
    assert unknown == {"checkpoint_waited", "leftover_removed"}
    (past,) = past_of(events)
    assert (past.kind, past.words) == ("done", None)


def test_a_run_of_a_release_with_chains_of_jobs(tmp_path: Path) -> None:
    events = valid(tmp_path, "chains").events
    progress = build_progress(events)
    assert progress.interruptions == {"preempted": 1}
    assert (progress.step, progress.saved_step, progress.job) == (14, 10, "72")
    assert progress.degraded is not None
    assert progress.degraded.startswith("mlflow cannot be reached")
    assert progress.no_successor is not None
    assert "QOSMaxSubmitJobPerUserLimit" in progress.no_successor
    (bad,) = excludable_nodes(events, events[-1].time)
    assert (bad.host, bad.problem) == ("n3", "GPU 3 has fallen off the bus")
    assert former_job(events) == "72"
    assert [(past.kind, past.progress) for past in past_of(events)] == [("preempted", True)]
    history = build_history(events, alive=True)
    assert [life.end for life in history.lives] == ["preempted", "running"]
    assert history.record()["stragglers"][0]["host"] == "n2"
    assert {step: found["val_loss"] for step, found in history.validated.items()} == {5: 3.4}


def test_the_subject_decides_and_not_the_words(tmp_path: Path) -> None:
    events = valid(tmp_path, "present").events
    progress = build_progress(events)
    assert progress.no_successor == "4 jobs have ended without a word or a checkpoint"
    assert progress.degraded == "no trace of steps 3 to 4: it was queued for a full disk"
    assert progress.differing == "at step 4: tensor w: rank 1 differs"
    (mine,) = [event for event in events if isinstance(event, UnknownEvent)]
    assert (mine.kind, mine["name"]) == ("milestone", "told by the user's own code")


@pytest.mark.parametrize(("release", "of_successor"), [("chains", [True, True, False])])
def test_without_a_subject_the_words_decide(
    tmp_path: Path, release: str, of_successor: list[bool]
) -> None:
    found = [one for one in valid(tmp_path, release).events if isinstance(one, Degraded)]
    assert [one.subject for one in found] == [None] * len(found)
    assert [one.is_of_successor for one in found] == of_successor


def test_why_says_it_of_a_finished_run(tmp_path: Path) -> None:
    run = submitted(tmp_path / "run")
    run.events.write_bytes((FILES / "first.jsonl").read_bytes())
    overview = read_overview(run, Queue())
    facts = {
        fact.name: fact.text
        for fact in explain_run(overview, None, overview.progress.begun or 0).facts
    }
    assert overview.state is RunState.DEAD, "its verdict.json is not there"
    assert "step 12" in facts["state"]
    assert "step 12" in facts["next"]


@pytest.mark.parametrize("release", RELEASES)
def test_the_exporter_takes_every_event(release: str) -> None:
    metrics = RunMetrics()
    events: Sequence[Event] = read_events(FILES / f"{release}.jsonl")
    for event in events:
        metrics.take(event)
    found = {(one.name, *one.labels): one.value for one in metrics.samples("r", events[-1].time)}
    subjects = {
        "first": {"unknown": 1},
        "chains": {"unknown": 3},
        "present": {"expedited_start": 1, "successor": 1, "profiler": 1},
    }
    degraded = {n[2]: v for n, v in found.items() if n[0] == "hpckit_degradations_total"}
    assert degraded == subjects[release]
    steps = [event for event in events if isinstance(event, StepLogged)]
    assert found["hpckit_step", "r"] == steps[-1].step
    saved = [event for event in events if isinstance(event, CheckpointCommitted)]
    assert found["hpckit_checkpoint_step", "r"] == saved[-1].step


def test_an_unknown_subject_of_a_later_release_is_kept() -> None:
    event = event_of(1.0, "degraded", {"subject": "quantum_link", "what": "no job is queued"})
    assert isinstance(event, Degraded)
    assert event.subject == "quantum_link"
    assert not event.is_of_successor
    assert event.subject not in list(DegradedSubject)
