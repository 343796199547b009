"""The end of a job with expedited requeues; Slurm is played by a program, by its documents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpckit.events.event_log import EventLog, read_events
from hpckit.events.schema import NodeLost, RunStarted, WorkerStarted
from hpckit.rundir.directory import RunDir
from hpckit.supervisor.continuation import expedited_requeue
from hpckit.supervisor.continuation.expedited_requeue import lost_hosts, wait_for_requeue
from hpckit.supervisor.continuation.next_job import JobRequeue
from tests.unit.hpckit.specs_and_processes import make_spec

SHOWN = "JobId=7 JobName=t UserId=u(1) JobState=RUNNING Requeue=1 Restarts=0"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The words of scontrol, a line for each call that changes something."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(
        f'#!/bin/sh\ncase "$*" in\n*"show job"*) cat {tmp_path}/shown ;;\n"show "*) ;;\n'
        f'*) echo "$@" >> {tmp_path}/asked; [ ! -e {tmp_path}/refuses ] ;;\nesac\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (tmp_path / "asked").touch()
    return tmp_path / "asked"


@pytest.mark.parametrize(
    ("is_expedited", "is_final", "how", "words"),
    [
        (True, True, "expedite", ["update JobId=7 Requeue=0"]),
        (True, True, "requeue", ["update JobId=7 Requeue=0"]),
        (True, True, "chain", []),  # submitted with --no-requeue
        (False, True, "requeue", []),
        (True, False, "expedite", ["requeue 7"]),
        (False, False, "requeue", ["requeue 7", "update JobId=7 StartTime=now+20"]),
    ],
)
def test_what_is_asked_of_slurm_at_the_end_of_a_job(
    tmp_path: Path, asked: Path, is_expedited: bool, is_final: bool, how: str, words: list[str]
) -> None:
    (tmp_path / "shown").write_text(SHOWN + " ExpeditedRequeue=Yes" * is_expedited)
    run, spec = RunDir(tmp_path), make_spec({"launch.continuation": how}, "slurm")
    with EventLog(run.events) as events, JobRequeue(run, spec, events, "7") as requeue:
        if not is_final:
            requeue.request("7")
    assert asked.read_text().splitlines() == words


def test_a_job_that_may_stay_held_is_reported(tmp_path: Path, asked: Path) -> None:
    (tmp_path / "shown").write_text(f"{SHOWN} ExpeditedRequeue=Yes")
    (tmp_path / "refuses").touch()
    run, spec = RunDir(tmp_path), make_spec({"launch.continuation": "expedite"}, "slurm")
    with EventLog(run.events) as events, JobRequeue(run, spec, events, "7"):
        pass
    (event,) = [one for one in read_events(run.events) if one.kind == "degraded"]
    assert event["what"].startswith("job 7 may be left in the queue (REQUEUE_HOLD); scancel 7")


class Controller:
    """What it says of the job's node, look after look; the last for ever."""

    def __init__(
        self, *states: str, is_requeued: bool, nodes: str = "n1", ends_as: str = "RUNNING"
    ) -> None:
        self.states, self.is_requeued, self.nodes = list(states), is_requeued, nodes
        self.ends_as = ends_as
        self.was_asked_to_look = False

    def __call__(self, command: Sequence[str]) -> str:
        if "--signal=URG" in command:
            self.was_asked_to_look = True
            return ""
        if "hostnames" in command:
            return f"{self.nodes}\n"
        if "node" in command:
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            return f"NodeName=n1 State={state}"
        is_last = len(self.states) == 1
        is_over = self.is_requeued and is_last
        text = f"{SHOWN} Reason=None NodeList={self.nodes} ExpeditedRequeue=Yes"
        text = text.replace("RUNNING", self.ends_as) if is_last else text
        return text.replace("Restarts=0", "Restarts=1") if is_over else text


@pytest.mark.parametrize(
    ("controller", "is_waited", "kinds"),
    [
        # Slurm finds it silent, gives it up, and requeues the job
        (
            Controller("MIXED", "MIXED*", "DOWN*", is_requeued=True),
            True,
            ["degraded", "job_requeued"],
        ),
        # a person cancels it meanwhile
        (
            Controller("MIXED*", "MIXED*", is_requeued=False, ends_as="CANCELLED"),
            True,
            ["degraded"],
        ),
        (Controller("MIXED*", "MIXED*", is_requeued=False, ends_as="TIMEOUT"), False, ["degraded"]),
        (Controller("MIXED", "MIXED", is_requeued=False, ends_as="PREEMPTED"), False, []),
        (Controller("MIXED", is_requeued=False), False, []),  # only the agent was lost
        (Controller("MIXED*", "MIXED", is_requeued=False), False, ["degraded"]),  # it is back
        (Controller("DOWN*", is_requeued=False, nodes="n2"), False, []),  # the job goes on without
        (Controller("MIXED*", is_requeued=False), False, ["degraded"]),  # Slurm takes too long
    ],
)
def test_a_job_that_lost_a_node_waits_for_slurm_to_requeue_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    controller: Controller,
    is_waited: bool,
    kinds: list[str],
) -> None:
    monkeypatch.setattr(expedited_requeue, "_POLL_S", 0.0)
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    with EventLog(tmp_path / "events") as events:
        is_seen = len(controller.states) > 1 or "*" in controller.states[0]
        is_seen &= controller.nodes == "n1"
        limits = {"check_s": 600.0 if is_seen else 0.05, "patience_s": 600.0 if is_waited else 0.1}
        assert wait_for_requeue("7", ["n1"], events, controller, **limits) == is_waited
    assert [event.kind for event in read_events(tmp_path / "events")] == kinds
    assert controller.was_asked_to_look, "Slurm looks seldom by itself"


def test_a_job_that_lost_no_node_asks_nothing(tmp_path: Path) -> None:
    controller = Controller("MIXED", is_requeued=False)
    with EventLog(tmp_path / "events") as events:
        assert not wait_for_requeue("7", [], events, controller)
    assert not controller.was_asked_to_look


def test_nodes_that_were_lost_in_the_last_job() -> None:
    first = RunStarted(pid=1, steps=9, job="7", hosts=["n1", "n2"])
    events = [first, NodeLost(node=1, host="n2"), first, NodeLost(node=0, host="n1")]
    assert lost_hosts(events) == ["n1"]
    assert lost_hosts(events[:3]) == []


def test_a_node_after_whose_loss_ranks_were_started_again_is_not_waited_for() -> None:
    lost = NodeLost(generation=3, node=1, host="n2")
    in_place, again = (WorkerStarted(generation=number, pid=2) for number in (3, 4))
    assert lost_hosts([lost, in_place]) == ["n2"]
    assert lost_hosts([lost, again]) == []
