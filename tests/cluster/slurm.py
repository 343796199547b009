"""What a test does with a cluster: submit jobs, and look at what became of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm.devcluster.cluster import Cluster
from tests.integration.run.runs import pause_s

PATIENCE_S = 500.0


def wait_for(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Raises:
    AssertionError: it did not come true.
    """
    deadline = time.monotonic() + within_s
    while True:
        asked = time.monotonic()
        if condition():
            return
        answered = time.monotonic()
        if answered > deadline:
            raise AssertionError(f"{what}: not within {within_s:g} s")
        time.sleep(max(0.1, pause_s(answered - asked)))


def _is_question(command: Sequence[str]) -> bool:
    """Whether the command changes nothing."""
    return command[0] in ("squeue", "sinfo", "sacct") or {"scontrol", "show"} <= {*command}


@dataclass(frozen=True)
class Slurm:
    """Slurm's commands on one cluster."""

    cluster: Cluster

    def run(self, *command: str, cwd: Path | None = None, within_s: float = PATIENCE_S) -> str:
        """A command's standard output.

        Raises:
            AssertionError: it failed. A question that a busy controller has not answered in time is
                asked again.
        """
        until_s = time.monotonic() + within_s
        while True:
            done = subprocess.run(
                command,
                env=self.cluster.env,
                cwd=cwd,
                capture_output=True,
                text=True,
                timeout=within_s,
            )
            is_unanswered = done.returncode != 0 and "timed out" in done.stderr
            if is_unanswered and _is_question(command) and time.monotonic() < until_s:
                continue
            assert done.returncode == 0, f"{command}: {done.stderr}"
            return done.stdout

    def submit(self, script: str, output: Path, *options: str) -> str:
        """Run a shell script as a job of little memory; the job's number.

        Args:
            output: where it writes, one run after the other.
        """
        log = (f"--output={output}", "--open-mode=append", "--mem=50")
        return self.run("sbatch", "--parsable", *log, *options, "--wrap", script).strip()

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says of it."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for_job(self, number: str, state: str) -> dict[str, str]:
        """Wait until it is in this state; what is said of it then."""
        wait_for(lambda: self.job(number)["JobState"] == state, f"job {number} {state}")
        return self.job(number)

    def wait_for_line(self, output: Path, line: str) -> None:
        """Wait until a job has written this line."""
        wait_for(
            lambda: output.exists() and line in output.read_text().splitlines(),
            f"{line!r} in {output}",
        )

    def states(self) -> set[str]:
        """Of the nodes: "idle", "allocated*" and so on."""
        return set(self.run("sinfo", "--noheader", "--Node", "--format=%T").split())

    def wait_for_idle(self, within_s: float = PATIENCE_S) -> None:
        wait_for(lambda: self.states() == {"idle"}, "all nodes idle", within_s)

    def reset(self, within_s: float = PATIENCE_S) -> None:
        """Everything as it was after the start, and no job left."""
        self.cluster.controller.start()
        for node in self.cluster.nodes:
            node.start()
            if self.cluster.plan.network:
                node.heal()
        self.run("scancel", "--user", self.cluster.plan.user)
        self.wait_for_idle(within_s)
