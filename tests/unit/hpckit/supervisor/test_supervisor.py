"""Tests of what happens to a job's successor when its supervisor fails or a person cancels the job;
the other paths are tested with real jobs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpckit.agent.verdict_record import Verdict, VerdictKind
from hpckit.config.spec_parser import dump_spec
from hpckit.events.event_log import EventLog, read_events
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import allocation
from hpckit.submit import job_submission as submit_module
from hpckit.supervisor import job_resources
from hpckit.supervisor import supervisor as module
from hpckit.supervisor.continuation.next_job import JobRequeue
from hpckit.supervisor.failure_context import describe_failure
from hpckit.supervisor.generation_history import GenerationHistory
from hpckit.supervisor.generation_watch import GenerationWatch
from hpckit.supervisor.job_resources import JobResources
from hpckit.supervisor.node_selection.node_problem_events import NodeProblemReporter
from hpckit.supervisor.preemption_drill import PreemptionDrill
from hpckit.supervisor.signal_requests import SupervisorRequests
from hpckit.supervisor.supervised_run import SupervisedRun
from tests.unit.hpckit.specs_and_processes import make_spec

SPEC = make_spec({"launch.nodes": 1}, cluster="slurm")
SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)  # that a supervisor takes over


@pytest.fixture
def in_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDir]:
    """A run that this process is to supervise as job 7, whose successor is job 8."""
    for name, script in {"scontrol": "echo n1", "scancel": ":", "sinfo": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setattr(submit_module, "submit_job", lambda *_: SimpleNamespace(job_id="8"))
    before = {number: signal.getsignal(number) for number in SIGNALS}
    run = RunDir(tmp_path / "run")
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(SPEC))
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def supervise_job(run: RunDir, events: EventLog) -> Verdict:
    """Runs the generations of the job as the supervisor does, without the run lock."""
    supervised = SupervisedRun(run, 1, SPEC, allocation(os.environ), events)
    controls = module.open_controls(supervised)
    with JobRequeue(run, SPEC, events, None) as requeue:
        return module.supervise_job(supervised, controls, requeue)


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (
            "kill_strays",
            "cannot end the processes that an earlier supervisor left on this node: TimeoutError",
        ),
        ("SlurmNodes", "cannot make folders of the run's containers: TimeoutError"),
        ("RendezvousStore", "TimeoutError: stuck (at test_supervisor.py:"),
    ],
)
def test_the_successor_of_a_supervisor_that_fails_stays_queued(
    in_a_job: RunDir, monkeypatch: pytest.MonkeyPatch, broken: str, what: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TimeoutError("stuck")

    monkeypatch.setattr(job_resources, broken, fail)
    with EventLog(in_a_job.events, submission=1) as events:
        with pytest.raises(TimeoutError) as caught:
            supervise_job(in_a_job, events)
        assert describe_failure(caught.value).startswith(what)
    kinds = [event.kind for event in read_events(in_a_job.events)]
    assert "successor_queued" in kinds
    assert "successor_cancelled" not in kinds


def test_a_run_that_has_ended_lacks_no_curve(
    in_a_job: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = Verdict(VerdictKind.INFRA, True, "the node with rank 0 was lost")

    @contextmanager
    def no_resources(*_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(module, "open_resources", no_resources)
    monkeypatch.setattr(module, "run_generations", lambda *_: verdict)
    with EventLog(in_a_job.events, submission=1) as events:
        events.emit_kind("step", step=1, loss=2.0)
        assert supervise_job(in_a_job, events) is verdict
    assert list(in_a_job.tensorboard.glob("events.out.tfevents.*"))


class Agents:
    """The agents of a generation that ends two looks after a signal arrived through one of them."""

    def __init__(self) -> None:
        self.looks, self.asked = 0, list[WorkerRequest]()

    def is_running(self) -> bool:
        self.looks += 1
        return self.looks <= 3

    def signals(self) -> set[str]:
        return {"SIGTERM"} if self.looks == 1 else set()

    def ask(self, request: WorkerRequest) -> None:
        self.asked.append(request)

    def unhealthy(self) -> dict[int, list[str]]:
        return {}

    def __getattr__(self, name: str) -> Any:
        return lambda *_: []  # nothing else happens


def test_ranks_leave_before_slurm_answers_and_the_run_stops_if_a_person_cancelled_the_job(
    in_a_job: RunDir,
) -> None:
    agents, has_left, dropped = Agents(), threading.Event(), list[bool]()

    def look() -> list[str]:
        if agents.looks == 3:
            has_left.set()
        return []

    requests = SupervisorRequests(lambda: has_left.wait(300))
    with EventLog(in_a_job.events, submission=1) as events:
        unused: Any = None
        parts: dict[str, Any] = {
            "controls": SimpleNamespace(requests=requests),
            "store": SimpleNamespace(disconnected=look),
            "agents": agents,
            "chain": SimpleNamespace(drop=lambda: dropped.append(True)),
        }
        resources = JobResources(
            supervised=SupervisedRun(in_a_job, 1, SPEC, None, events),
            nodes=unused,
            saved_step=unused,
            problems=NodeProblemReporter(None, events),
            drill=PreemptionDrill((), 0),
            **parts,
        )
        watch = GenerationWatch(1, resources, GenerationHistory(()))
        assert watch.run() is WorkerRequest.STOP
    assert agents.asked == [WorkerRequest.PREEMPT, WorkerRequest.STOP]
    assert dropped == [True]
    passed_on = [e["request"] for e in read_events(in_a_job.events) if e.kind == "asked"]
    assert passed_on == ["preempt", "stop"], (
        "a successor reads this, even if this process is killed"
    )
