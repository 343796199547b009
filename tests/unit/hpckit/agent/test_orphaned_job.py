"""Who ends a job without a supervisor, and who must not."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpckit.agent import orphaned_job
from hpckit.agent.orphaned_job import (
    EarlyNodeCheck,
    SupervisorLiveness,
    end_job,
    is_left_to_slurm,
    is_lost,
    is_orphan,
    release_successor,
)
from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir
from hpckit.slurm import queued_jobs

JOB = "JobId=7 JobName=t JobState={} Reason=None ReqNodeList=(null) NodeList={}"
NODE = "NodeName=n1 Arch=x86_64 State={} ThreadsPerCore=1"


class Controller:
    """What it says of the node, look after look; the last for ever."""

    def __init__(self, *states: str, job: str = "RUNNING", nodes: str = "n[1-2]") -> None:
        self.states, self.job, self.nodes = list(states), job, nodes
        self.cancelled = self.requeued = self.was_made_to_look = False
        self.failures = 0
        self.sign: Path | None = None  # looked for when it is told to cancel
        self.was_signed = False

    def __call__(self, command: Sequence[str]) -> str:
        if self.failures:
            self.failures -= 1
            raise subprocess.CalledProcessError(1, list(command))
        if "--signal=URG" in command:
            self.was_made_to_look = True
            return ""
        if command[0] == "scancel":
            assert command[1:] == ["7"]
            self.cancelled = True
            self.was_signed = self.sign is not None and self.sign.exists()
            return ""
        if "requeue" in command:
            assert command[1:] == ["requeue", "7"]
            self.requeued = True
            return ""
        if "job" in command:
            return JOB.format(self.job, self.nodes)
        if "hostnames" in command:
            return {"n[1-2]": "n1\nn2\n", "n2": "n2\n"}[command[-1]]
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state == "no answer":
            raise subprocess.CalledProcessError(1, list(command))
        return NODE.format(state)


def test_slurm_is_made_to_look_each_time_the_supervisor_falls_quiet() -> None:
    slurm = Controller("IDLE")
    check = EarlyNodeCheck(("7", "n1"), slurm)
    threads = [check.update(is_quiet=quiet) for quiet in (False, True, True, False, True)]
    check.close()
    for thread in threads:
        if thread is not None:
            thread.join()
    assert [thread is not None for thread in threads] == [False, True, False, False, True]
    assert slurm.was_made_to_look
    assert not slurm.cancelled


def test_a_silence_is_confirmed_once_slurm_has_no_answer_of_the_node_either() -> None:
    slurm = Controller("ALLOCATED", "no answer", "ALLOCATED+NOT_RESPONDING")
    check = EarlyNodeCheck(("7", "n1"), slurm)
    thread = check.update(is_quiet=True)
    assert thread is not None
    thread.join()
    assert check.is_confirmed
    check.update(is_quiet=False)
    assert not check.is_confirmed, "the next silence is another one"


def test_an_agent_in_no_job_asks_nobody_about_a_quiet_supervisor() -> None:
    assert EarlyNodeCheck(None).update(is_quiet=True) is None


def lives() -> bool:
    return True


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphaned_job, "POLL_S", 0.0)
    monkeypatch.setattr(orphaned_job, "EARLY_LOOK_S", 0.0)
    monkeypatch.setattr(orphaned_job, "EARLY_POLL_S", 0.0)
    monkeypatch.setattr(orphaned_job, "LEFT_POLL_S", 0.0)


@pytest.mark.parametrize(
    "state",
    [
        *("DOWN", "DOWN+NOT_RESPONDING", "DOWN+DRAIN", "MIXED+NOT_RESPONDING"),
        *("ALLOCATED+NOT_RESPONDING", "IDLE+DRAIN+NOT_RESPONDING", "MIXED+CLOUD+NOT_RESPONDING"),
        *("DOWN*", "ALLOCATED*", "IDLE*+DRAIN"),
    ],
)
def test_a_lost_node_is_one_that_slurm_does_not_hear(state: str) -> None:
    assert is_lost(NODE.format(state))


@pytest.mark.parametrize("state", ["ALLOCATED", "MIXED", "IDLE", "MIXED+DRAIN", "DOWNTOWN"])
def test_others_are_not(state: str) -> None:
    assert not is_lost(NODE.format(state))


def test_it_is_alone_once_slurm_has_lost_the_first_node() -> None:
    controller = Controller("ALLOCATED", "no answer", "ALLOCATED+NOT_RESPONDING")
    assert is_orphan("7", "n1", lives, controller)
    assert controller.was_made_to_look, "it looks by itself, and seldom"


def test_only_a_few_agents_of_a_large_job_press_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(orphaned_job, "LEFT_POLL_S", 15.0)
    monkeypatch.setattr("hpckit.agent.orphaned_job.time.sleep", pauses.append)
    controller = Controller("ALLOCATED", "no answer", "ALLOCATED+NOT_RESPONDING")
    assert is_orphan("7", "n1", lives, controller, is_urgent=False)
    assert not controller.was_made_to_look, "it is enough that the first agents do"
    assert pauses == [15.0, 15.0]


def test_they_ask_less_often_once_slurm_should_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphaned_job, "EARLY_POLL_S", 0.25)
    monkeypatch.setattr(orphaned_job, "POLL_S", 1.0)
    monkeypatch.setattr(orphaned_job, "LEFT_POLL_S", 15.0)
    paused = [orphaned_job._pause_s(s, is_urgent=True) for s in (0.0, 29.0, 31.0)]
    assert paused == [0.25, 0.25, 1.0]


def test_a_node_that_is_back_is_not_the_jobs_any_more() -> None:
    assert is_orphan("7", "n1", lives, Controller("IDLE", nodes="n2"))


def test_a_node_that_was_cut_off_is_not_alone() -> None:
    assert not is_orphan("7", "n1", lives, Controller("ALLOCATED"), patience_s=0.05)


def test_one_whose_supervisor_says_nothing_to_anybody_is_alone() -> None:
    asked: list[bool] = []

    def is_mute() -> bool:
        asked.append(True)
        return False

    assert is_orphan("7", "n1", is_mute, Controller("ALLOCATED"), patience_s=0.05)
    assert asked == [True]


def test_or_not_where_that_cannot_be_known() -> None:
    def fail() -> bool:
        raise OSError("the disk is gone")

    assert not is_orphan("7", "n1", fail, Controller("ALLOCATED"), patience_s=0.05)


def test_a_supervisor_speaks_by_events_that_are_its_own(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events") as log:
        log.emit_kind("agent_started", node=0)
        overheard = SupervisorLiveness(tmp_path / "events")
        for kind in ("step", "degraded", "checkpoint_committed", "strays_killed"):
            log.emit_kind(kind)
        assert not overheard.has_written(), "agents and ranks say these"
        log.emit_kind("agent_started", node=0)
        assert overheard.has_written()
        assert overheard.has_written(), "it has, and has not said more since"


def test_nor_is_one_whose_job_has_ended() -> None:
    assert not is_orphan("7", "n1", lives, Controller("DOWN*", job="COMPLETED"))


def test_a_job_is_cancelled_once_it_is_signed_that_no_person_does(tmp_path: Path) -> None:
    controller = Controller("DOWN*")
    controller.sign = tmp_path / "orphans" / "7"
    assert end_job("7", controller.sign, controller)
    assert (controller.cancelled, controller.requeued) == (True, False)
    assert controller.was_signed


def test_or_comes_again_and_slurm_tells_who_wanted_it(tmp_path: Path) -> None:
    controller = Controller("DOWN*")
    assert end_job("7", tmp_path / "orphans" / "7", controller, comes_again=True)
    assert (controller.cancelled, controller.requeued) == (False, True)
    assert not list(tmp_path.iterdir())


def test_its_successor_does_not_wait_for_its_end_but_for_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [("8", ""), ("9", "afterok:5,afterany:6")]
    looks: list[list[tuple[str, str]]] = [
        [],
        waiting,
    ]  # at first the cancelled job counts as running
    monkeypatch.setattr(queued_jobs, "waiting_for", lambda run, job: looks.pop(0))
    orders: list[Sequence[str]] = []

    def obey(command: Sequence[str]) -> str:
        orders.append(command)
        return ""

    assert release_successor(RunDir(tmp_path), "7", obey) == ["8", "9"]
    update = ["scontrol", "update"]
    assert orders == [
        [*update, "JobId=8", "Dependency="],
        [*update, "JobId=9", "Dependency=afterok:5,afterany:6"],
    ]


def test_no_successor_is_waited_for_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued_jobs, "waiting_for", lambda run, job: [])
    assert release_successor(RunDir(tmp_path), "7", Controller("IDLE"), patience_s=0.01) == []


def test_a_successor_that_slurm_does_not_change_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued_jobs, "waiting_for", lambda run, job: [("8", "")])
    controller = Controller("IDLE")
    controller.failures = 1
    assert release_successor(RunDir(tmp_path), "7", controller) == []


def test_one_that_another_has_ended_is_left_alone(tmp_path: Path) -> None:
    controller = Controller("DOWN*", job="CANCELLED")
    assert not end_job("7", tmp_path / "orphans" / "7", controller)
    assert not controller.cancelled
    assert not list(tmp_path.iterdir())


def test_a_job_is_ended_also_where_no_sign_can_be_left(tmp_path: Path) -> None:
    controller = Controller("DOWN*")
    (tmp_path / "orphans").touch()
    assert end_job("7", tmp_path / "orphans" / "7", controller)
    assert controller.cancelled


def test_a_controller_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    controller = Controller("DOWN*")
    controller.failures = 2
    assert end_job("7", tmp_path / "orphans" / "7", controller)
    assert controller.cancelled


class Expediting(Controller):
    """Of a job with expedited requeues, which Slurm queues again after some looks at the node."""

    def __init__(self, *states: str, nodes: str = "n[1-2]") -> None:
        super().__init__(*states, nodes=nodes)
        self.looks = 0

    def __call__(self, command: Sequence[str]) -> str:
        if "node" in command:
            self.looks += 1
        if self.looks > 2:
            self.job = "EXPEDITING"
        is_of_job = "job" in command and "requeue" not in command
        return super().__call__(command) + " ExpeditedRequeue=Yes" * is_of_job


def test_an_expedited_requeue_is_left_to_slurm_as_long_as_the_node_is_silent(
    tmp_path: Path,
) -> None:
    controller = Expediting("ALLOCATED*", "DOWN*")
    assert not end_job("7", tmp_path / "7", controller, comes_again=True, host="n1")
    assert not controller.requeued
    assert controller.looks == 3


@pytest.mark.parametrize(
    "controller",
    [
        Expediting("ALLOCATED"),  # only its supervisor hangs
        Expediting("DOWN*", nodes="n2"),  # Slurm took the node from the job, which goes on
        Controller("ALLOCATED*"),  # other requeues
    ],
)
def test_other_jobs_are_requeued_at_once(tmp_path: Path, controller: Controller) -> None:
    assert end_job("7", tmp_path / "7", controller, comes_again=True, host="n1")
    assert controller.requeued
    assert controller.sign is None


def test_what_is_left_to_slurm() -> None:
    text = JOB.format("RUNNING", "n[1-2]")
    silent = Controller("ALLOCATED*")
    assert is_left_to_slurm(f"{text} ExpeditedRequeue=Yes", ["n1"], silent)
    assert not is_left_to_slurm(text, ["n1"], silent)
    assert not is_left_to_slurm(f"{text} ExpeditedRequeue=Yes", [], silent)
