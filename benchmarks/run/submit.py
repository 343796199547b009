"""How long the dry run and the submission of a run take, against a bare sbatch.

    python -m benchmarks.run.submit [--rounds 20] [--other CHECKOUT]

It starts a Slurm of two nodes on this machine (`slurm.devcluster`) that holds all jobs, so none
runs. The arms, each a new Python process, alternate: `launch.py --dry-run`; `launch.py` in a root
without runs (`first submit`), and again for a run whose job is gone (`submit`), which shares the
files of its code copy that are older than five minutes; and `sbatch` of the script that the dry run
prints. `import pydantic` and `import hydra` only import what the two processes of a command import
of other projects, side by side, and `import submitit` what a submission imports as well: a command
takes as long as the longer of both processes at least. With --other,
`launch.py` of another checkout is measured as well. Between two measurements, jobs are cancelled
and new directories removed. A submit minus `sbatch` is what hpckit adds: config, checks, a copy of
the code, submitit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.number_arguments import positive_int
from benchmarks.run.recovery import pack
from slurm.devcluster.cluster import Cluster
from slurm.devcluster.options import ClusterOptions

_REPO = Path(__file__).resolve().parents[2]
_IMPORTS = {
    "import pydantic": "from pydantic import TypeAdapter, dataclasses",
    "import submitit": "import submitit",
    "import hydra": "import hydra",
}
_RUN = (
    *("name=t", "model=gpt_nano", "data=shards", "cluster=slurm", "cluster.device=cpu"),
    *("cluster.slurm.gpus=none", "cluster.slurm.memory=500M", "launch.nodes=2"),
    "cluster.slurm.options.hold=true",
)


@dataclass(frozen=True)
class SubmitSite:
    """A cluster, the folder of its runs and shards, and the code under test."""

    cluster: Cluster
    folder: Path
    checkout: Path

    def launch(self, root: str, *flags: str) -> str:
        """Returns the output of `launch.py`.

        Args:
            root: below the folder, of this checkout's own.
        """
        places = (f"root={self.runs(root)}", f"data.shards={self.folder / 'shards'}")
        words = [sys.executable, str(self.checkout / "launch.py"), *_RUN]
        return self.call([*words, *places, *flags])

    def runs(self, root: str) -> Path:
        return self.folder / self.checkout.name / root

    def call(self, words: list[str]) -> str:
        done = subprocess.run(
            words,
            env=self.cluster.env,
            cwd=self.checkout,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def cancel(self) -> None:
        self.call(["scancel", "--user", self.cluster.plan.user])


@dataclass(frozen=True)
class SubmitArm:
    """One measured command. What it left in a root that has to be new is removed afterwards."""

    site: SubmitSite
    act: Callable[[], object]
    processor_s: list[float] = field(default_factory=list)
    """Seconds of processor time of each call, including its child processes."""

    def seconds(self) -> float:
        """Returns the elapsed seconds of one call."""
        before, begun_s = os.times(), time.perf_counter()
        self.act()
        took_s, after = time.perf_counter() - begun_s, os.times()
        user_s = after.children_user - before.children_user
        self.processor_s.append(user_s + after.children_system - before.children_system)
        self.site.cancel()
        shutil.rmtree(self.site.runs("new"), ignore_errors=True)
        return took_s


def arms_of(site: SubmitSite, prefix: str = "") -> dict[str, SubmitArm]:
    """Returns the arms of one checkout, after submitting the run that they submit again."""
    site.launch("kept")
    site.cancel()
    return {
        f"{prefix}dry run": SubmitArm(site, lambda: site.launch("new", "--dry-run")),
        f"{prefix}first submit": SubmitArm(site, lambda: site.launch("new")),
        f"{prefix}submit": SubmitArm(site, lambda: site.launch("kept")),
    }


def batch_script(site: SubmitSite) -> Path:
    """Writes the script of the run as the dry run prints it, without `--output`."""
    _, head, text = site.launch("new", "--dry-run").partition("#!/bin/bash\n")
    lines = [line for line in (head + text).splitlines() if "--output" not in line]
    path = site.folder / "bare.sh"
    path.write_text("\n".join(lines) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=positive_int, default=20)
    parser.add_argument("--other", type=Path, help="a checkout of another version")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        Cluster.up(Path(name) / "slurm", ClusterOptions(nodes=2)) as cluster,
    ):
        folder = Path(name)
        pack(folder)
        site = SubmitSite(cluster, folder, _REPO)
        bare = ["sbatch", f"--output={os.devnull}", str(batch_script(site))]
        arms = {
            "sbatch": SubmitArm(site, lambda: site.call(bare)),
            **{
                name: SubmitArm(site, partial(site.call, [sys.executable, "-c", program]))
                for name, program in _IMPORTS.items()
            },
            **arms_of(site),
        }
        if asked.other:
            arms |= arms_of(SubmitSite(cluster, folder, asked.other.resolve()), "other ")
        measured = interleave({name: arm.seconds for name, arm in arms.items()}, asked.rounds)
    report(ArmComparison("submit", "sbatch", "s", measured), {"rounds": asked.rounds})
    for name, arm in arms.items():
        pairs = zip(measured[name], measured["sbatch"], strict=True)
        added_s = median(ours - bare_s for ours, bare_s in pairs)
        print(f"{name}: {added_s:.3f} s more than sbatch (median of the rounds), ", end="")
        print(f"{median(arm.processor_s):.2f} s of processors (median)")


if __name__ == "__main__":
    main()
