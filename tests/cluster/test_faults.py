"""A run that meets one fault after the other, where jobs are accounted for: not a bit is lost."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.faults.injection.process_faults import ProcessFault, victims
from hpckit.faults.injection.process_faults import inject_fault as play
from hpckit.rundir.directory import RunDir
from slurm.devcluster.cluster import Cluster
from tests.cluster import guard
from tests.cluster.conftest import need, options
from tests.cluster.launched import Launched, launch
from tests.cluster.slurm import Slurm, wait_for
from tests.integration.run.runs import assert_same_run, history

_BUDGETS = ("retry.max_restarts=9", "retry.crash=9", "retry.infra=9", "retry.hang=9")


@pytest.fixture(scope="module")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One with slurmdbd."""
    need("ports", accounting=True)
    chosen = replace(options("ports"), accounting=True)
    with guard.cluster(tmp_path_factory.mktemp("accounted"), chosen) as cluster:
        yield cluster


def meets(it: Launched, fault: Callable[[], None]) -> None:
    """It trains again after it."""
    before, step = len(it.events("training_started")), it.events("step")[-1]["step"]
    it.wait_for_step(step + 1)  # since the last one it has trained
    fault()
    begun = it.wait_for("training_started", before + 1)
    wait_for(lambda: it.events("step")[-1].time > begun.time, "a step after the fault", 240)


def strike(it: Launched, fault: ProcessFault, number: int, signal_: signal.Signals) -> None:
    (victim,) = victims(str(it.run.path), fault, number)
    victim.send_signal(signal_)


def test_a_run_comes_through_one_fault_after_the_other(
    accounted: Cluster, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    slurm, sign = Slurm(accounted), tmp_path / "sign"
    faulty = ("entry=tests.cluster.faulty:main", f"user_config.sign={sign}", "hang.step_s=5")
    often = "checkpoint.every_steps=4"  # while the disk of the service fails, too
    it = launch(slurm, tmp_path / "runs", shards, *faulty, often, *_BUDGETS)
    it.wait_for("successor_queued")
    it.wait_for_step(21)
    meets(it, lambda: strike(it, ProcessFault.WORKER, 1, signal.SIGKILL))
    meets(it, lambda: strike(it, ProcessFault.HANG, 1, signal.SIGSTOP))
    meets(it, sign.touch)
    assert {life.generation for life in history(it.run).lives} == {1}, "all of it in place"
    assert [event["memory"] for event in it.events("out_of_memory")] == ["gpu"]
    assert [event["phase"] for event in it.events("hang")][:1] == ["training"]
    meets(it, lambda: strike(it, ProcessFault.AGENT, 0, signal.SIGKILL))
    assert [event["node"] for event in it.events("agent_killed")] == [0]
    (started,) = it.events("run_started")
    drained = accounted.node(started["hosts"][1])
    drained.drain()
    it.wait_for_step(it.events("step")[-1]["step"] + 2)  # the run goes on there
    meets(it, lambda: os.kill(started["pid"], signal.SIGKILL))
    drained.resume()
    broken = ProcessFault.EIO if shutil.which("strace") else ProcessFault.FULL
    assert play(str(it.run.path), broken, 0), "the disk of its service fails, for a while"
    it.wait_for("checkpoint_failed")
    it.wait_for("run_ended")
    it.wait_until_over()
    assert_same_run(it.run, reference)
    assert it.verdicts() == ["infra", "done"], "who was killed has said nothing"
    second = it.events("run_started")[1]
    assert second["job"] == it.events("successor_queued")[0]["job"]
    assert drained.name in started["hosts"]
    assert drained.name not in second["hosts"]
    sacct = ("sacct", "-X", "--noheader", "--format=State", f"--jobs={second['job']}")
    wait_for(lambda: slurm.run(*sacct).split() == ["COMPLETED"], "the accounting")
