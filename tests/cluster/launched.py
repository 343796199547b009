"""Runs that `launch.py` submits to a cluster."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpckit.events.event_log import Event
from hpckit.rundir.directory import RunDir
from tests.cluster.slurm import PATIENCE_S, Slurm, wait_for
from tests.integration.run.runs import Followed, command, ranks_paused

SLURM = (
    "cluster=slurm",
    "cluster.device=cpu",
    "cluster.grace_s=25",
    "cluster.slurm.gpus=none",
    "cluster.slurm.memory=900M",
    "cluster.slurm.cpus_per_node=2",
    "launch.threads_per_worker=1",  # as in the reference, to whose bits they are compared
)


UNHURRIED = "entry=tests.cluster.unhurried:main"
"""For a run that is to be interrupted by Slurm, which takes its time."""


@dataclass
class Launched:
    """A run on a cluster."""

    slurm: Slurm
    run: RunDir

    def __post_init__(self) -> None:
        self._followed = Followed(self.run.events)

    def events(self, kind: str, **fields: object) -> list[Event]:
        found = [event for event in self._followed.events() if event.kind == kind]
        return [e for e in found if all(e.get(k) == v for k, v in fields.items())]

    def wait_for(self, kind: str, count: int = 1, **fields: object) -> Event:
        wait_for(lambda: len(self.events(kind, **fields)) >= count, kind, PATIENCE_S)
        return self.events(kind, **fields)[count - 1]

    def wait_for_step(self, step: int) -> None:
        wait_for(
            lambda: any(e["step"] >= step for e in self.events("step")),
            f"step {step}",
            PATIENCE_S,
        )

    def wait_until_over(self) -> None:
        """No job of the run is left."""
        wait_for(lambda: self.jobs() == [], "an empty queue", PATIENCE_S)

    def jobs(self) -> list[str]:
        """In the queue, running or waiting; a successor comes after the one that queued it."""
        name = f"--name={self.run.name}"
        lines = self.slurm.run("squeue", "--noheader", name, "--format=%i %k", "--sort=i")
        pairs = [line.split(maxsplit=1) for line in lines.splitlines()]
        ours = ("(null)", f"hpckit:{self.run.path}")
        return [number for number, comment in pairs if comment.strip() in ours]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The ranks make no step within the block, however long a busy machine takes for a command.
        They are on this host, as on a cluster of the form "ports"."""
        with ranks_paused(self.events("worker_started")):
            yield

    def verdicts(self) -> list[str]:
        return [event["verdict"] for event in self.events("generation_ended")]


def launch(slurm: Slurm, root: Path, shards: Path, *overrides: str) -> Launched:
    """Submit a run; it has begun."""
    done = subprocess.run(
        command(root, shards, *SLURM, *overrides),
        env=os.environ | slurm.cluster.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    launched = Launched(slurm, RunDir(next(root.glob("t-*"))))
    said = rf"job (\d+)\n    hpckit status {re.escape(str(launched.run.path))}\n"
    assert re.findall(said, done.stdout) == [submitted_job(launched.run)]
    return launched


def submitted_job(run: RunDir) -> str:
    """The number of the first job of a run, which may be over by now."""
    scripts = run.submitit.glob("*_submission.sh")
    return str(min(int(script.name.partition("_")[0]) for script in scripts))
