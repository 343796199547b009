"""The programs of `programs/`, launched by hpckit on two ranks, disturbed, and compared."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json
from hpckit.system.child_processes import strays
from tests.integration.run.runs import REPO, complete, kill, started

PROGRAMS = Path(__file__).parent / "programs"
KEYS = ("name=t", "launch.nproc_per_node=2", "launch.threads_per_worker=1", "cluster.device=cpu")
LOSS = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)
END = "the end of the script"


@dataclass(frozen=True)
class Trained:
    """What a run has left behind."""

    run: RunDir
    losses: list[dict[int, set[str]]]
    """By rank and step, the losses that were printed, to the last bit. A repeated step has printed
    its loss again."""
    ends: list[str]
    """How its generations ended."""
    times_at_end: int
    """How often the scripts of both ranks have come to their end."""


def command(folder: Path, program: str, *arguments: str) -> list[str]:
    """Copies a program into a project in `folder`, and returns what launches it there."""
    project = folder / "project"
    project.mkdir(parents=True)
    shutil.copy(PROGRAMS / f"{program}.py", project)
    words = ["--output", str(folder / "output"), *arguments]
    launch = [sys.executable, str(REPO / "launch.py"), *KEYS, f"root={folder / 'runs'}"]
    return [*launch, "--", "python", f"{program}.py", *words]


def undisturbed(folder: Path, program: str) -> Trained:
    words = command(folder, program)
    status, output = complete(folder / "runs", words, cwd=folder / "project")
    assert status == 0, output
    return trained(folder)


def disturbed(folder: Path, program: str, step_s: float, *, kill_at: int | None) -> Trained:
    """Run a program; a rank is killed once step `kill_at` is finished, and the run is preempted
    some steps later."""
    words = command(folder, program, "--step-s", str(step_s))
    with started(folder / "runs", words, cwd=folder / "project") as it:
        preempt_at = 8
        if kill_at is not None:
            it.wait_for_step(kill_at)
            assert kill(it.wait_for("worker_started", rank=1)["pid"])
            it.wait_for("worker_started", count=2, rank=1)
            preempt_at += kill_at
        it.wait_for_step(preempt_at)
        assert kill(it.wait_for("run_started")["pid"], signal.SIGUSR2)
        status, output = it.finish()
    assert status == 0, output
    found = trained(folder)
    assert found.ends == ["preempted", "done"]
    assert found.times_at_end == 2
    return found


def trained(folder: Path) -> Trained:
    (path,) = (folder / "runs").glob("t-*")
    run = RunDir(path)
    assert read_json(run.verdict)["kind"] == "done"
    assert strays(path) == []
    events = read_events(run.events)
    ends = [event["verdict"] for event in events if event.kind == "generation_ended"]
    losses, scripts = [], ""
    for rank in (0, 1):
        logs = "".join(run.rank_log(g, 0, rank).read_text() for g in range(1, len(ends) + 1))
        found: dict[int, set[str]] = {}
        for step, loss in LOSS.findall(logs):
            found.setdefault(int(step), set()).add(loss)
        losses.append(found)
        scripts += logs
    return Trained(run, losses, ends, scripts.count(END))
