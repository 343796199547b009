"""What becomes of a job's successor when its supervisor fails, or a person ends the job; the rest
of it is tested with real jobs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpckit.agent.verdict_record import Verdict, VerdictKind
from hpckit.config.spec_parser import dump_spec
from hpckit.events.event_log import EventLog, read_events
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.rundir.directory import RunDir
from hpckit.submit import job_submission as submit_module
from hpckit.supervisor import supervisor as module
from hpckit.supervisor.failure_context import describe_failure
from hpckit.supervisor.node_selection.node_problem_events import NodeProblemReporter
from hpckit.supervisor.preemption_drill import PreemptionDrill
from hpckit.supervisor.supervisor import Supervisor
from tests.unit.hpckit.specs_and_processes import make_spec

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
    run.spec(1).write_text(dump_spec(make_spec({"launch.nodes": 1}, cluster="slurm")))
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (
            "kill_strays",
            "cannot end what an earlier supervisor has left on this node: TimeoutError",
        ),
        ("SlurmNodes", "cannot make folders of the run's containers: TimeoutError"),
        ("RendezvousStore", "TimeoutError: stuck (at test_supervisor.py:"),
    ],
)
def test_the_successor_of_a_supervisor_that_fails_goes_on(
    in_a_job: RunDir, monkeypatch: pytest.MonkeyPatch, broken: str, what: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TimeoutError("stuck")

    monkeypatch.setattr(module, broken, fail)
    with EventLog(in_a_job.events, submission=1) as events:
        with pytest.raises(TimeoutError) as caught:
            Supervisor(in_a_job, 1, (), events).run()
        assert describe_failure(caught.value).startswith(what)
    kinds = [event.kind for event in read_events(in_a_job.events)]
    assert "successor_queued" in kinds
    assert "successor_cancelled" not in kinds


def test_a_run_that_is_over_lacks_no_curve(
    in_a_job: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = Verdict(VerdictKind.INFRA, True, "the node with rank 0 was lost")
    monkeypatch.setattr(Supervisor, "_prepare", lambda *_: None)
    monkeypatch.setattr(Supervisor, "_run_with_agents", lambda _: verdict)
    with EventLog(in_a_job.events, submission=1) as events:
        events.emit("step", step=1, loss=2.0)
        assert Supervisor(in_a_job, 1, (), events).run() is verdict
    assert list(in_a_job.tensorboard.glob("events.out.tfevents.*"))


class Agents:
    """Of a generation that is over two looks after a signal has come through one of them."""

    def __init__(self) -> None:
        self.looks, self.asked = 0, list[WorkerRequest]()

    def is_under_way(self) -> bool:
        self.looks += 1
        return self.looks <= 3

    def signals(self) -> set[str]:
        return {"SIGTERM"} if self.looks == 1 else set()

    def ask(self, request: WorkerRequest) -> None:
        self.asked.append(request)

    def unhealthy(self) -> dict[int, list[str]]:
        return {}

    def __getattr__(self, name: str) -> Any:
        return lambda *_: []  # nothing else is the matter


def test_ranks_leave_before_slurm_says_who_wanted_it_and_nothing_goes_on_if_it_was_a_person(
    in_a_job: RunDir,
) -> None:
    crew, has_left, dropped = Agents(), threading.Event(), list[bool]()

    def is_cancelled() -> bool:
        return has_left.wait(30)

    def look() -> list[str]:
        if crew.looks == 3:
            has_left.set()
        return []

    with EventLog(in_a_job.events, submission=1) as events:
        supervisor: Any = Supervisor(in_a_job, 1, (), events)
        supervisor._problem_reporter, supervisor._drill = (
            NodeProblemReporter(None, events),
            PreemptionDrill((), 0),
        )
        supervisor._termination_cause = SimpleNamespace(is_cancelled=is_cancelled)
        supervisor._chain = SimpleNamespace(drop=lambda: dropped.append(True))
        supervisor._generation = 1
        assert supervisor._watch(crew, SimpleNamespace(left=look)) is WorkerRequest.STOP
    assert crew.asked == [WorkerRequest.PREEMPT, WorkerRequest.STOP]
    assert dropped == [True]
    told = [event["request"] for event in read_events(in_a_job.events) if event.kind == "asked"]
    assert told == ["preempt", "stop"], "by which a successor knows, whatever becomes of this one"
