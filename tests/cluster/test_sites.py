"""What a site and `launch.py -m` ask of a real Slurm, and what comes of it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

from hpckit.rundir.directory import RunDir
from tests.cluster.launched import SLURM, UNHURRIED, Launched
from tests.cluster.slurm import PATIENCE_S, Slurm, wait_for
from tests.integration.cli.run_commands import Typed
from tests.integration.run.runs import ON_ONE_NODE, assert_same_run, command, losses

FAKE_APPTAINER = """\
#!/usr/bin/env python3
import json, os, sys
words = sys.argv[1:]
with open(os.environ["APPTAINER_TOLD"], "a") as file:
    file.write(json.dumps(words) + "\\n")
at = words.index(os.environ["APPTAINER_IMAGE"])
os.execvp(words[at + 1], words[at + 1:])
"""


def launch_py(slurm: Slurm, *words: str, env: dict[str, str] | None = None) -> str:
    """What `launch.py` prints of words that it accepts."""
    done = subprocess.run(
        words,
        env=os.environ | slurm.cluster.env | (env or {}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_dry_run_prints_what_is_submitted(ports: Slurm, tmp_path: Path, shards: Path) -> None:
    root = tmp_path / "it's a root"
    words = command(
        tmp_path,
        shards,
        f"root={root}",
        *SLURM,
        "cluster.slurm.options={hold: true, comment: 'a; b'}",
    )
    words += ["cluster.slurm.time_limit='00:10:00'", "cluster.slurm.setup=['ulimit -c 0']"]
    shown, _, script = launch_py(ports, *words, "--dry-run").partition("\n\n")
    assert "\n# start       20" in shown
    assert not root.exists()
    launch_py(ports, *words)
    run = RunDir(next(root.glob("t-*")))
    # its comment is the user's, not the one by which `Launched.jobs` knows a job
    (job,) = ports.run("squeue", "--noheader", f"--name={run.name}", "--format=%i").split()
    assert script == (run.submitit / f"{job}_submission.sh").read_text() + "\n"
    ports.run("scancel", job)


def test_a_sweep_is_one_array_whose_tasks_go_on_by_themselves(
    ports: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    """The first task is preempted while the second one waits for it to make room."""
    several = (*ON_ONE_NODE, UNHURRIED, "launch.max_parallel=1", "train.seed=1,2", "-m")
    words = command(tmp_path, shards, *SLURM, *several)
    shown = launch_py(ports, *words, "--dry-run").partition("\n\n")[2]
    said = launch_py(ports, *words).splitlines()
    array = said[-1].split()[-1]
    assert [line.split()[1] for line in said[:2]] == [f"{array}_0", f"{array}_1"]
    runs = [Launched(ports, RunDir(Path(line.split()[2]))) for line in said[:2]]
    folder = tmp_path / "t-sweep-001"
    assert (folder / "submitit" / f"{array}_submission.sh").read_text() + "\n" == shown
    told = [Typed(it.run, ports.cluster.env).json("status") for it in runs]
    assert [[job["number"] for job in one["jobs"]][:1] for one in told] == [
        [f"{array}_0"],
        [f"{array}_1"],
    ]
    runs[0].wait_for_step(23)
    assert not runs[1].run.logs.joinpath("supervisor.log").exists()
    ports.run("srun", "--partition=high", "--nodes=3", "--exclusive", "true", within_s=PATIENCE_S)
    for it in runs:
        wait_for(lambda it=it: "done" in it.verdicts(), "the last step", PATIENCE_S)  # type: ignore[misc]
    wait_for(lambda: ports.run("squeue", "--noheader") == "", "an empty queue", PATIENCE_S)
    first, second = runs[0].events("run_started")
    assert first["job"] == f"{array}_0"
    assert second["job"] == runs[0].events("successor_queued")[0]["job"]
    assert [event["job"] for event in runs[1].events("run_started")] == [f"{array}_1"]
    assert runs[1].events("successor_cancelled") != []
    assert_same_run(runs[0].run, reference)
    assert losses(runs[1].run) != losses(reference)
    assert all((it.run.logs / f"batch-{n}.log").exists() for it, n in ((runs[0], second["job"]),))
    assert launch_py(ports, *words).splitlines()[-1].startswith("all runs are done")
    more = command(
        tmp_path, shards, *SLURM, *ON_ONE_NODE, UNHURRIED, "train.seed=1,3,4", "-m", "--json"
    )
    told_of = json.loads(launch_py(ports, *more))["runs"]
    array = told_of[1]["job"].partition("_")[0]
    assert [one["job"] for one in told_of] == [None, f"{array}_0", f"{array}_1"]
    assert [one["submission"] for one in told_of] == [None, 1, 1]
    assert told_of[0]["path"] == str(runs[0].run.path)
    ports.run("scancel", array)


def test_agents_run_in_the_container_and_workers_in_the_sites_environment(
    ports: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    bin_, scratch, told = tmp_path / "bin", tmp_path / "scratch", tmp_path / "told.jsonl"
    for folder in (bin_, scratch):
        folder.mkdir()
    image = tmp_path / "train image.sif"
    image.touch()
    (bin_ / "apptainer").write_text(FAKE_APPTAINER)
    (bin_ / "apptainer").chmod(0o755)
    evil = "$(touch evil) 'quoted' \"twice\""
    words = command(
        *(tmp_path / "runs", shards, *SLURM),
        f"cluster.slurm.container={{kind: apptainer, image: '{image}', options: [--no-home],"
        f" mounts: ['{bin_}:/tools:ro'], python: '{sys.executable}'}}",
        *("cluster.slurm.interface=lo", f"cluster.slurm.scratch={scratch}"),
        "entry=tests.cluster.telling:main",
        f"user_config.environment={tmp_path}",
    )
    words.append("cluster.slurm.env={EVIL: " + json.dumps(evil) + ", N: 3}")
    env = {"PATH": f"{bin_}:{ports.cluster.env.get('PATH', os.environ['PATH'])}"}
    env |= {"APPTAINER_TOLD": str(told), "APPTAINER_IMAGE": str(image)}
    launch_py(ports, *words, env=env)
    it = Launched(ports, RunDir(next((tmp_path / "runs").glob("t-*"))))
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    assert losses(it.run) == losses(reference)
    calls = [json.loads(line) for line in told.read_text().splitlines()]
    assert len(calls) == 2, "one for each node"
    binds = {call[at + 1] for call in calls for at, word in enumerate(call) if word == "--bind"}
    assert binds == {f"{bin_}:/tools:ro", *(f"{p}:{p}" for p in (it.run.path, shards, scratch))}
    for call in calls:
        assert call[0] == "exec"
        assert "--nv" not in call, "on the CPU"
        assert call[call.index(str(image)) - 1] == "--no-home"
        assert call[-3:] == [sys.executable, "-m", "hpckit.agent.watchdog"]
    worker = json.loads((tmp_path / "rank1.json").read_text())
    assert (worker["EVIL"], worker["N"]) == (evil, "3")
    assert {worker[f"{kind}_SOCKET_IFNAME"] for kind in ("NCCL", "GLOO")} == {"lo"}
    cache = Path(worker["TRITON_CACHE_DIR"]).parent
    assert cache.parent == scratch
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
