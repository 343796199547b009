"""A node that is not healthy: left out, and kept from the jobs that follow."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from threading import Thread

import pytest

from tests.cluster.launched import SLURM, Launched, launch
from tests.cluster.slurm import Slurm
from tests.integration.cli.run_commands import HPCKIT, Typed
from tests.integration.run.runs import REPO, throttle

SHORT = ("train.steps=12", "optim.warmup_steps=2", "cluster.device=auto", "debug.ledger=false")
PROBLEM = "GPU 0: 3 uncorrected memory errors, more than health.ecc_errors=0"


def put_first(folder: Path, name: str, script: str, patch: pytest.MonkeyPatch) -> None:
    """A command that jobs find before the one of that name."""
    tool = folder / "bin" / name
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{script}")
    tool.chmod(0o755)
    patch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")


@pytest.fixture
def bad(ports: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The node that Slurm gives second, whose nvidia-smi tells of broken memory."""
    host = ports.cluster.nodes[1].name
    script = (
        f'[ "$SLURMD_NODENAME" = {shlex.quote(host)} ] && errors=3 || errors=0\n'
        'case "$1" in\n'
        '--query-gpu=*) echo "0, GPU-1, 00000000:3B:00.0, $errors, No" ;;\n'
        '*) echo "GPU-1, 0, 0" ;;\n'
        "esac\n"
    )
    put_first(tmp_path, "nvidia-smi", script, monkeypatch)
    return host


def assert_told(it: Launched, host: str) -> None:
    """Of the bad node, with a line for who administers the cluster."""
    found = it.events("node_unhealthy")
    assert [(event["host"], event["problems"]) for event in found] == [(host, [PROBLEM])]
    line = shlex.split(found[0]["admin"])
    assert line == [
        *("scontrol", "update", f"nodename={host}", "state=drain", f"reason=hpckit: {PROBLEM}")
    ]


def test_it_is_left_out_where_there_is_a_spare(
    ports: Slurm, tmp_path: Path, shards: Path, bad: str
) -> None:
    it = launch(ports, tmp_path, shards, "elastic=spares", *SHORT)
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    assert_told(it, bad)
    assert it.verdicts() == ["done"]
    assert len(it.events("run_started")) == 1
    (chosen,) = it.events("nodes_chosen")
    assert chosen["nodes"] == [0, 2]
    assert it.events("all_reduce")[0]["world_size"] == 2


def test_the_next_job_does_not_get_it(ports: Slurm, tmp_path: Path, shards: Path, bad: str) -> None:
    it = launch(ports, tmp_path, shards, *SHORT)
    assert it.wait_for("run_ended", 2)["verdict"] == "done"
    it.wait_until_over()
    assert_told(it, bad)
    assert it.verdicts() == ["infra", "done"]
    reason = it.events("generation_ended")[0]["reason"]
    assert reason == f"too few healthy nodes: {bad} ({PROBLEM})"
    first, second = it.events("run_started")
    assert bad in first["hosts"]
    assert bad not in second["hosts"]
    assert ports.job(second["job"])["ExcNodeList"] == bad
    typed = Typed(it.run, ports.cluster.env)
    told = typed.json("status")["bad_nodes"]
    assert [(one["host"], one["is_unhealthy"]) for one in told] == [(bad, True)]
    status, why, _ = typed.type("why")
    assert status == 0
    assert f"    {it.events('node_unhealthy')[0]['admin']}  # " in why


DEEP = (
    "health=deep",
    "health.deep.slow_matrix=0.2",  # which no process of a busy machine misses
    *(f"health.deep.slow_{name}=0.0" for name in ("memory", "transfer", "link", "disk", "store")),
)


@pytest.mark.thorough  # a run on this machine does without a slow node, too
def test_one_that_is_measured_as_slow_is_left_out_and_kept_from_the_next_job(
    ports: Slurm, tmp_path: Path, shards: Path
) -> None:
    it = launch(ports, tmp_path, shards, "elastic=spares", *DEEP, *SHORT)
    slow = it.wait_for("worker_started", rank=1, generation=1)
    log = it.run.rank_log(1, 1, 1)
    thread = Thread(target=throttle, args=(slow["pid"], log, "measuring memory"))
    thread.start()
    measured = it.wait_for("deep_health")
    thread.join()
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    host = ports.cluster.nodes[1].name
    assert measured["is_complete"]
    assert len(measured["hosts"]) == 3
    (problem,) = it.events("deep_health_problem", host=host)
    assert (problem["measure"], problem["is_excluded"]) == ("matrix", True)
    assert 0.0 < problem["value"] < 0.2 * problem["median"]
    (told,) = it.events("node_unhealthy")
    assert told["host"] == host
    assert told["admin"].startswith(f"scontrol update nodename={host}")
    assert it.wait_for("nodes_chosen")["nodes"] == [0, 2]
    assert Typed(it.run, ports.cluster.env).json("status")["bad_nodes"][0]["host"] == host


def test_a_job_measures_the_nodes_of_the_cluster(ports: Slurm, tmp_path: Path) -> None:
    words = [*SLURM, *DEEP[1:], "health.deep.slow_matrix=0.0"]
    words += ["launch.nodes=3", f"root={tmp_path}", "health.deep.seconds=0.05"]
    done = subprocess.run(
        [HPCKIT, "health", *words, "--json"],
        env=os.environ | ports.cluster.env,
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (len(found["nodes"]), found["is_complete"], found["problems"]) == (3, True, [])
    assert len(found["exchanges"]) == 3


def test_a_node_that_no_agent_comes_on_is_tried_twice_and_left_to_no_other_job(
    ports: Slurm, tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, said = ports.cluster.nodes[1].name, "srun: error: Unable to create step: it is broken"
    script = (
        f'case "$*" in *--nodelist={host}\\ *) echo {shlex.quote(said)} >&2; exit 1 ;; esac\n'
        f'exec {shutil.which("srun")} "$@"\n'
    )
    put_first(tmp_path, "srun", script, monkeypatch)
    it = launch(ports, tmp_path, shards, *SHORT)
    assert it.wait_for("run_ended", 2)["verdict"] == "done"
    it.wait_until_over()
    assert it.verdicts() == ["infra", "infra", "done"]
    reason = it.events("generation_ended")[0]["reason"]
    assert reason == f"no agent started on node 1 ({host}) ({said})"
    assert [event["host"] for event in it.events("node_lost")] == [host]
    first, second = it.events("run_started")
    assert host in first["hosts"]
    assert host not in second["hosts"]
    assert ports.job(second["job"])["ExcNodeList"] == host
    assert it.events("run_ended")[0]["verdict"] == "infra", "it had said how it ended"
