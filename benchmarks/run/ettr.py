"""The training share of a run on Slurm with one fault every minute.

    python -m benchmarks.run.ettr [--minutes 10] [--every 60] [--seed 0]

Needs root: it starts a Slurm of four nodes on this machine (`slurm.devcluster`), each with a
network and cgroups of its own. A run of four ranks with steps of 0.2 s saves every ten steps and
shrinks by lost nodes (`elastic=shrink`). The faults alternate in an order that the seed decides:
SIGKILL of a rank, SIGSTOP of a rank (detected after `hang.step_s=2`), SIGKILL of a node's agent,
and SIGKILL of all processes of a node including slurmd; a lost node is back ten seconds later.

The training share is the time in kept steps as a share of the time from the first step to the
last. A step counts with the median time, on four nodes or fewer, because it is mostly sleep. All
nodes share this machine's cores, and importing torch once per node is most of the time of a new
generation.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.common.number_arguments import positive_float
from benchmarks.run.recovery import (
    QUICK,
    RecoveryRun,
    kill_agent,
    launched,
    pack,
    signal_worker,
    wait,
)
from benchmarks.run.recovery_report import report
from hpckit.events.schema import StepLogged
from hpckit.report.ettr import training_share
from slurm.devcluster.cluster import Cluster
from slurm.devcluster.options import ClusterOptions

NODES, AWAY_S = 4, 10.0
_RUN = (
    *("launch.nodes=4", "train.global_batch=12", "train.micro_batch=3", "elastic=shrink"),
    *("checkpoint.every_steps=10", "hang.step_s=2", "entry=hpckit.drill.workload:main"),
    *("cluster.slurm.cpus_per_node=1",),
)


def worker(job: RecoveryRun, chance: random.Random) -> None:
    signal_worker(job, chance.randrange(world(job)), signal.SIGKILL)


def hang(job: RecoveryRun, chance: random.Random) -> None:
    signal_worker(job, chance.randrange(world(job)), signal.SIGSTOP)


def agent(job: RecoveryRun, chance: random.Random) -> None:
    kill_agent(job, job.training_host())


def node(job: RecoveryRun, chance: random.Random) -> None:
    """Chooses a node other than the first, whose loss would end the batch process of the job."""
    lost = job.cluster.node(job.training_host())
    lost.kill()
    threading.Timer(AWAY_S, lost.start).start()


def world(job: RecoveryRun) -> int:
    """Returns the present ranks."""
    return int([e["world_size"] for e in job.events() if e.kind == "training_started"][-1])


FAULTS: dict[str, Callable[[RecoveryRun, random.Random], None]] = {
    "worker": worker,
    "hang": hang,
    "agent": agent,
    "node": node,
}


def campaign(job: RecoveryRun, minutes: float, every_s: float, chance: random.Random) -> list[str]:
    """Injects faults, waits until the run has recovered from the last, and returns them."""
    done: list[str] = []
    end_s = time.time() + 60 * minutes
    while (at_s := time.time() + every_s * chance.uniform(0.8, 1.2)) < end_s:
        time.sleep(at_s - time.time())
        name = chance.choice(list(FAULTS))
        FAULTS[name](job, chance)
        done.append(name)
        print(f"{name}, {(end_s - time.time()) / 60:.1f} minutes left", flush=True)
    time.sleep(max(0.0, end_s - time.time()))
    reached = max(e["step"] for e in job.steps())
    wait(lambda: max(e["step"] for e in job.steps()) > reached, "a last step")
    return done


def standstills(steps: Sequence[StepLogged]) -> list[float]:
    """Returns the seconds from the last step before each interruption to the first new step."""
    found, reached = [], steps[0]
    usual_s = median(event.step_s for event in steps)
    for event in steps[1:]:
        if event.step > reached.step:
            if event.time - reached.time > 5 * usual_s:
                found.append(event.time - reached.time)
            reached = event
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=positive_float, default=10.0)
    parser.add_argument("--every", type=positive_float, default=60.0, help="seconds, about")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    options = ClusterOptions(
        nodes=NODES, form="namespaces", grace_s=30, slurmd_timeout_s=5, settings=QUICK
    )
    with tempfile.TemporaryDirectory() as name, Cluster.up(Path(name) / "slurm", options) as found:
        pack(Path(name))
        with launched(found, Path(name), _RUN) as job:
            broke = campaign(job, asked.minutes, asked.every, random.Random(asked.seed))
            steps = [event for event in job.steps() if isinstance(event, StepLogged)]
    report("ettr", {f"{len(broke)} faults": standstills(steps)})
    usual_s = median(event.step_s for event in steps)
    print(f"{', '.join(broke)}; training share {training_share(steps, usual_s):.3f}")


if __name__ == "__main__":
    main()
