"""A site whose TaskProlog and Prolog set, remove and print things."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil

from hpckit.faults.injection.process_faults import ProcessFault, victims
from tests.cluster import guard
from tests.cluster.conftest import need, options
from tests.cluster.launched import UNHURRIED, Launched, launch
from tests.cluster.slurm import Slurm

TASK_PROLOG = """#!/bin/sh
echo "export OF_NODE=$SLURMD_NODENAME"
echo "export WITH_BLANKS=a b = c"
echo "export PATH=/opt/site/bin:$PATH"
echo "unset REMOVED_ON_NODES"
echo "print the task prolog speaks"
echo "neither of them"
"""
PROLOG = """#!/bin/sh
echo "export OF_PROLOG=1"
echo "print the prolog speaks"
"""


def worker_variables(it: Launched, begun: int) -> dict[int, dict[str, str]]:
    """The environments of the workers that train, once training has begun so often, by rank. On a
    busy machine, more of them may have been started in between."""
    it.wait_for("training_started", begun)
    with it.paused():
        newest = {event["rank"]: event["pid"] for event in it.events("worker_started")}
        return {rank: psutil.Process(pid).environ() for rank, pid in newest.items()}


def test_each_worker_has_what_the_task_prolog_of_its_node_sets_after_each_restart(
    tmp_path: Path, shards: Path
) -> None:
    need("ports")
    scripts = {"TaskProlog": TASK_PROLOG, "Prolog": PROLOG}
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    settings = tuple(f"{name}={tmp_path / name}" for name in scripts)
    chosen = options("ports", nodes=2)
    with guard.cluster(
        tmp_path / "c", replace(chosen, settings=(*chosen.settings, *settings))
    ) as c:
        setup = "cluster.slurm.setup=['export REMOVED_ON_NODES=1 KEPT=1']"
        ways = (UNHURRIED, "user_config.unhurried=2", "user_config.step_s=1", "hang=none", setup)
        it = launch(Slurm(c), tmp_path / "runs", shards, *ways)
        seen = []
        for begun, step, fault in (
            (1, 21, ProcessFault.WORKER),
            (2, 24, ProcessFault.AGENT),
            (3, 27, None),
        ):
            it.wait_for_step(step)
            seen.append(worker_variables(it, begun))
            if fault is not None:
                victims(str(it.run.path), fault, 1)[0].kill()
        for found in seen:
            assert [found[rank]["OF_NODE"] for rank in (0, 1)] == ["n1", "n2"]
            for variables in found.values():
                assert variables["WITH_BLANKS"] == "a b = c"
                assert variables["KEPT"] == "1"
                assert "/opt/site/bin" in variables["PATH"].split(":")
                assert not {"REMOVED_ON_NODES", "OF_PROLOG"} & variables.keys()
        assert it.verdicts() == ["infra"]
        assert len(it.events("run_started")) == 1, "all within one job"
        assert "the task prolog speaks" in (it.run.logs / "supervisor.log").read_text()
        it.slurm.run("scancel", it.events("run_started")[0]["job"])
        it.wait_for("run_ended")
