"""A successor job that is held, cannot start any more, or is cancelled while the job before it
runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from hpckit.events.event_log import Event, EventLog, read_events
from hpckit.rundir.directory import RunDir
from hpckit.slurm.job_ownership import job_comment
from hpckit.submit.compose import compose_spec
from hpckit.supervisor.continuation import job_chain
from hpckit.supervisor.continuation.job_chain import JobChain
from hpckit.supervisor.continuation.successor_watch import look_at_successor
from hpckit.supervisor.node_selection.exclude_list import ExcludeList
from tests.cluster.slurm import Slurm, wait_for
from tests.cluster.test_site_kinds import told
from tests.unit.hpckit.specs_and_processes import make_spec


@contextmanager
def watched(
    run: RunDir,
    changes: dict[str, object],
    queue: Callable[[], str],
    patch: pytest.MonkeyPatch,
) -> Iterator[JobChain]:
    """The chain of a supervisor, which looks at its successor all the time."""
    for name, value in {"WATCH_S": 0.1, "REVIEW_EACH": 1}.items():
        patch.setattr(job_chain, name, value)
    small = {"cluster.device": "cpu", "launch.nodes": 1, "cluster.slurm.memory": "50M"}
    with EventLog(run.events) as events:
        events.emit_kind("run_started", job="1")
        bad = ExcludeList(run, make_spec({**small, **changes}, "slurm"), events)
        with JobChain(queue, events, review=bad.review, look=look_at_successor) as chain:
            yield chain


def newest(run: RunDir, kind: str) -> Event | None:
    return next((e for e in reversed(list(read_events(run.events))) if e.kind == kind), None)


def wait_until_last(run: RunDir, kind: str, words: str = "") -> None:
    def is_last() -> bool:
        last = list(read_events(run.events))[-1]
        return last.kind == kind and words in str(last.fields)

    wait_for(is_last, f"{kind} {words}")


def test_a_successor_that_cannot_start_is_told_and_one_that_is_cancelled_is_left_alone(
    ports: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ports.cluster.variables.items():
        monkeypatch.setenv(name, value)
    run, small = RunDir(tmp_path), ("--nodes=1", f"--comment={job_comment(tmp_path)}")
    submit = partial(ports.submit, "true", tmp_path / "log", *small)
    runs = ports.submit("sleep 600", tmp_path / "log", "--nodes=1")
    queue = partial(submit, f"--dependency=afterany:{runs}")
    partition = ("scontrol", "update", "partitionname=low")
    with watched(run, {"cluster.slurm.partition": "low"}, queue, monkeypatch) as chain:
        wait_until_last(run, "successor_queued")
        first = chain.job
        assert first is not None
        ports.run("scontrol", "uhold", first)
        wait_until_last(run, "successor_blocked", "JobHeldUser: its owner has put it on hold")
        found = told(compose_spec(["cluster=slurm", f"root={tmp_path}"]), tmp_path)
        (finding,) = [one for one in found if one.subject == "queued jobs"]
        assert finding.what.startswith(f"job {first} of {tmp_path} cannot start: JobHeldUser")
        assert finding.do == f"scontrol release {first}"
        ports.run("scontrol", "release", first)
        wait_until_last(run, "successor_unblocked")
        try:
            ports.run(*partition, "state=inactive")  # as it waits for a job, only a review tells
            wait_until_last(run, "successor_blocked", "artition")
        finally:
            ports.run(*partition, "state=up")
        wait_until_last(run, "successor_unblocked")
        ports.run("scancel", first)
        wait_until_last(run, "degraded", f"job {first}, which was to continue the run, was canc")
        assert not chain.keep(0)
    ports.run("scancel", runs)


def test_a_successor_whose_dependency_can_never_be_met_is_replaced(
    ports: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ports.cluster.variables.items():
        monkeypatch.setenv(name, value)
    run = RunDir(tmp_path)
    fails = ports.submit("false", tmp_path / "log", "--nodes=1")
    ports.wait_for_job(fails, "FAILED")
    waits = iter([f"--dependency=afterok:{fails}", "--hold"])
    with watched(
        run,
        {},
        lambda: ports.submit("true", tmp_path / "log", "--nodes=1", next(waits)),
        monkeypatch,
    ) as chain:
        wait_for(lambda: newest(run, "successor_blocked") is not None, "a held successor")
        first, second = (e["job"] for e in read_events(run.events) if e.kind == "successor_queued")
        assert chain.job == second
        assert ports.job(first)["JobState"] == "CANCELLED"
