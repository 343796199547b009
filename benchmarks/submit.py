"""What it takes to look at a run, and to submit it, beside a bare sbatch.

    .venv/bin/python -m benchmarks.submit [--rounds 20]

A Slurm of two nodes on this machine (`slurm.devcluster`), whose jobs are held back: nothing of them
runs. In turns: `launch.py --dry-run` and `launch.py` of the same run, a process of Python each; and
`sbatch` of the very script that the dry run prints. What is submitted is cancelled, and the run
directory is removed, between two measurements. `submit` less `sbatch` is what hpckit adds: config,
checks, a copy of the code, submitit.
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
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.ab import Comparison, interleave, report
from benchmarks.recovery import pack
from slurm.devcluster.cluster import Cluster
from slurm.devcluster.options import Options

_REPO = Path(__file__).resolve().parents[1]
_RUN = (
    *("name=t", "model=gpt_nano", "data=shards", "cluster=slurm", "cluster.device=cpu"),
    *("cluster.slurm.gpus=none", "cluster.slurm.memory=500M", "launch.nodes=2"),
    "cluster.slurm.options.hold=true",
)


@dataclass(frozen=True)
class Site:
    """A cluster, and the folder of its runs and shards."""

    cluster: Cluster
    folder: Path

    def launch(self, *flags: str) -> str:
        """What `launch.py` says."""
        places = (f"root={self.folder / 'runs'}", f"data.shards={self.folder / 'shards'}")
        return self.call([sys.executable, str(_REPO / "launch.py"), *_RUN, *places, *flags])

    def call(self, words: list[str]) -> str:
        done = subprocess.run(
            words, env=self.cluster.env, cwd=_REPO, check=True, capture_output=True, text=True
        )
        return done.stdout

    def clean(self) -> None:
        """No job is left, and no run directory."""
        self.call(["scancel", "--user", self.cluster.plan.user])
        shutil.rmtree(self.folder / "runs", ignore_errors=True)


def seconds(site: Site, act: Callable[[], object]) -> float:
    """Of one call; what it has left is gone afterwards."""
    begun_s = time.perf_counter()
    act()
    took_s = time.perf_counter() - begun_s
    site.clean()
    return took_s


def batch_script(site: Site) -> Path:
    """The script of the run, as the dry run prints it, without the folders that it would make."""
    _, head, text = site.launch("--dry-run").partition("#!/bin/bash\n")
    lines = [line for line in (head + text).splitlines() if "--output" not in line]
    path = site.folder / "bare.sh"
    path.write_text("\n".join(lines) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        Cluster.up(Path(name) / "slurm", Options(nodes=2)) as cluster,
    ):
        site = Site(cluster, Path(name))
        pack(site.folder)
        bare = ["sbatch", f"--output={os.devnull}", str(batch_script(site))]
        arms = {
            "sbatch": lambda: seconds(site, lambda: site.call(bare)),
            "dry run": lambda: seconds(site, lambda: site.launch("--dry-run")),
            "submit": lambda: seconds(site, site.launch),
        }
        measured = interleave(arms, asked.rounds)
    report(Comparison("submit", "sbatch", "s", measured), {"rounds": asked.rounds})
    pairs = zip(measured["submit"], measured["sbatch"], strict=True)
    added = [ours - bare_s for ours, bare_s in pairs]
    print(f"submit less sbatch: {median(added):.3f} s (median)")


if __name__ == "__main__":
    main()
