"""How long a run on Slurm takes to recover: from the fault to the first new step.

    python -m benchmarks.run.recovery [--rounds 5] [--case worker ...]

Needs root: it starts a Slurm of six nodes on this machine (`slurm.devcluster`), each with a network
and cgroups of its own. A run of two ranks on two nodes saves every ten steps and gets each fault
`--rounds` times, each time after it has trained for 65 seconds. A step is new if no step of that
number was finished before the fault. All nodes share this machine's cores.

- *worker*: SIGKILL of a rank; torchrun restarts all ranks. *hang*: SIGSTOP of a rank, with
  `hang.step_s=2`.
- *agent*, *first agent*: SIGKILL of the agent of a node, or of the supervisor's node; it is
  replaced there.
- *spare*, *shrink*: SIGKILL of all processes of a training node, including slurmd.
- *first node*: the same on the node of the batch process; the successor job continues on free
  nodes. *first node, no spare*: of two nodes and not three, so that each has a core on a machine
  of two.
- *preempted*: a job of another partition takes all nodes and ends immediately. *capacity*: the
  time of that from the end of that job on.
- *timeout*: the time from Slurm's notice that the time limit is near.

The time is split as in `hpckit.faults.campaign.recovery_time`, from the run's events. `queue` is
from the end of a job's last generation to the start of the next job; `other` is the rest.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.common.number_arguments import positive_int
from benchmarks.run.recovery_report import Parts, report_parts
from data import pack_folder, python_stdlib
from hpckit.events.event_log import EventTail
from hpckit.events.schema import Event
from hpckit.faults.campaign.fault_log import RecordedFault
from hpckit.faults.campaign.recovery_time import recovery_time
from hpckit.faults.injection.process_faults import ProcessFault, victims
from hpckit.rundir.directory import RunDir
from slurm.devcluster.cluster import Cluster
from slurm.devcluster.options import ClusterOptions

NODES = 6
PATIENCE_S = 180.0
SETTLED_S = 45.0
QUICK = ("MessageTimeout=3", "TCPTimeout=2")
_REPO = Path(__file__).resolve().parents[2]
_RUN = (
    *("name=t", "model=gpt_nano", "data=shards", "train.steps=1000000", "train.global_batch=8"),
    *("train.micro_batch=4", "train.log_every=1", "optim.warmup_steps=5", "launch.nodes=2"),
    *("launch.threads_per_worker=1", "checkpoint.every_steps=10", "retry.max_restarts=1000"),
    *("retry.infra=1000", "cluster=slurm", "cluster.device=cpu", "cluster.grace_s=25"),
    *("cluster.slurm.gpus=none", "cluster.slurm.memory=1300M", "cluster.slurm.cpus_per_node=2"),
)


class RecoveryRun:
    """A run that trains."""

    def __init__(self, cluster: Cluster, run: RunDir) -> None:
        self.cluster, self.run = cluster, run
        self._tail, self._events = EventTail(run.events), list[Event]()

    def events(self) -> list[Event]:
        """Returns all events so far. Only new ones are read, as this is called all the time, and
        the nodes need the processors."""
        self._events += self._tail.read()
        return self._events

    def steps(self) -> Iterator[Event]:
        return (event for event in self.events() if event.kind == "step")

    def hosts(self) -> list[str]:
        """Returns the hosts of the newest job."""
        found: list[str] = [e["hosts"] for e in self.events() if e.kind == "run_started"][-1]
        return found

    def training_host(self) -> str:
        """Returns a node that trains and is not the supervisor's."""
        chosen = [e["hosts"] for e in self.events() if e.kind == "nodes_chosen"]
        hosts: list[str] = chosen[-1] if chosen else self.hosts()
        return next(host for host in hosts if host != self.hosts()[0])

    def await_training(self, begun_s: float = 0.0) -> None:
        """Waits until the run has trained for `SETTLED_S` seconds after `begun_s`, in which a
        restarted agent imports what it forks."""
        wait(lambda: any(e.time > begun_s for e in self.steps()), "training")
        began_s = next(e.time for e in self.steps() if e.time > begun_s)
        wait(lambda: any(e.time > began_s + SETTLED_S for e in self.steps()), "steps")

    def recovery(self, fault: Callable[[], float | None]) -> Parts:
        """Returns the seconds from the fault to the first new step.

        Args:
            fault: returns when it came, if not when it was called.
        """
        self.await_training(time.time())
        before, begun_s = len(list(self.lives())), time.time()
        begun_s = fault() or begun_s
        wait(lambda: self.parts(before, begun_s) is not None, "a new step")
        found = self.parts(before, begun_s)
        assert found is not None
        return found

    def parts(self, before: int, fault_s: float) -> Parts | None:
        """Returns the recovery up to the first step that none of the first `before` attempts had
        finished; None: there is no such step yet."""
        events = self.events()
        starts = [i for i, event in enumerate(events) if event.kind == "training_started"]
        if len(starts) <= before:
            return None
        reached = max(e["step"] for e in events[: starts[before]] if e.kind == "step")
        found = recovery_time(events, RecordedFault(fault_s, "fault", reached, ""))
        return None if found is None else {**asdict(found), "total": found.total}

    def took(self, kind: str, since_s: float) -> float:
        """Returns the seconds from then to the first event of that kind."""
        wait(lambda: self._after(kind, since_s), kind)
        return self._after(kind, since_s)[0].time - since_s

    def _after(self, kind: str, since_s: float) -> list[Event]:
        return [event for event in self.events() if event.kind == kind and event.time >= since_s]

    def lives(self) -> Iterator[Event]:
        return (event for event in self.events() if event.kind == "training_started")

    def end(self) -> None:
        name = f"--name={self.run.name}"
        self.slurm("scancel", name)
        wait(lambda: not self.slurm("squeue", "--noheader", name), "an empty queue")

    def slurm(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.cluster.env, capture_output=True, text=True, check=True
        )
        return done.stdout


def worker(job: RecoveryRun) -> Parts:
    return job.recovery(lambda: signal_worker(job, 1, signal.SIGKILL))


def hang(job: RecoveryRun) -> Parts:
    return job.recovery(lambda: signal_worker(job, 1, signal.SIGSTOP))


def agent(job: RecoveryRun) -> Parts:
    return job.recovery(lambda: kill_agent(job, job.training_host()))


def first_agent(job: RecoveryRun) -> Parts:
    return job.recovery(lambda: kill_agent(job, job.hosts()[0]))


def node(job: RecoveryRun) -> Parts:
    return lose(job, job.training_host())


def first_node(job: RecoveryRun) -> Parts:
    return lose(job, job.hosts()[0])


def preempted(job: RecoveryRun) -> Parts:
    back_s = 0.0

    def preempt() -> None:
        nonlocal back_s
        job.slurm("srun", "--partition=high", f"--nodes={NODES}", "--exclusive", "true")
        back_s = time.time()

    found = job.recovery(preempt)
    return {**found, "capacity": max(0.0, job.took("run_started", back_s))}


def timeout(job: RecoveryRun) -> Parts:
    def run_out() -> float:
        begun_s = time.time()
        end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(begun_s + 60))
        number = [e["job"] for e in job.events() if e.kind == "run_started"][-1]
        job.slurm("scontrol", "update", f"JobId={number}", f"EndTime={end}")
        return begun_s + job.took("asked", begun_s)

    return job.recovery(run_out)


CASES: dict[str, tuple[Callable[[RecoveryRun], Parts], tuple[str, ...]]] = {
    "worker": (worker, ()),
    "hang": (hang, ("hang.step_s=2",)),
    "agent": (agent, ()),
    "first agent": (first_agent, ()),
    "spare": (node, ("elastic=spares",)),
    "shrink": (node, ("elastic=shrink",)),
    "first node": (first_node, ("elastic=spares",)),
    "first node, no spare": (first_node, ()),
    "preempted": (preempted, ()),
    "timeout": (timeout, ("cluster.slurm.notice_s=90",)),
}


def lose(job: RecoveryRun, host: str) -> Parts:
    """Kills a node and returns the seconds of the recovery; the node is idle again afterwards."""
    lost = job.cluster.node(host)
    found = job.recovery(lost.kill)
    lost.start()
    job.end()
    wait(lambda: set(job.slurm("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}, "idle nodes")
    return found


def signal_worker(job: RecoveryRun, rank: int, number: signal.Signals) -> None:
    for process in victims(str(job.run.path), ProcessFault.WORKER, rank):
        os.kill(process.pid, number)
        return
    raise RuntimeError(f"there is no rank {rank}")


def kill_agent(job: RecoveryRun, host: str) -> None:
    """Kills the agent of this host's node. The node has the process ids of this machine."""
    for process in victims(str(job.run.path), ProcessFault.AGENT, job.hosts().index(host)):
        process.kill()
        return
    raise RuntimeError(f"there is no agent on {host}")


def wait(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {PATIENCE_S:g} s")
        time.sleep(0.05)


@contextmanager
def launched(cluster: Cluster, folder: Path, overrides: tuple[str, ...]) -> Iterator[RecoveryRun]:
    """Starts a run and waits until it trains."""
    places = (f"root={folder / 'runs'}", f"data.shards={folder / 'shards'}")
    subprocess.run(
        [sys.executable, str(_REPO / "launch.py"), *_RUN, *places, *overrides, "--fresh"],
        env=cluster.env,
        cwd=_REPO,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    job = RecoveryRun(cluster, RunDir(next((folder / "runs").glob("t-????????"))))
    try:
        job.await_training()
        yield job
    finally:
        job.end()


def measure(cluster: Cluster, folder: Path, case: str, rounds: int) -> list[Parts]:
    """Returns the seconds of each round. Another run starts after the loss of a node."""
    look, overrides = CASES[case]
    if look in (node, first_node):
        found = []
        for _ in range(rounds):
            with launched(cluster, folder, overrides) as job:
                found.append(look(job))
        return found
    with launched(cluster, folder, overrides) as job:
        return [look(job) for _ in range(rounds)]


def pack(folder: Path) -> None:
    """Writes the shards of the runs."""
    source = python_stdlib()[0] / "encodings"
    pack_folder(source, folder / "shards", suffixes=(".py",), samples_per_shard=50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=positive_int, default=5)
    parser.add_argument("--case", choices=CASES, action="append")
    settings = parser.parse_args()
    options = ClusterOptions(
        nodes=NODES, form="namespaces", grace_s=30, slurmd_timeout_s=5, settings=QUICK
    )
    with tempfile.TemporaryDirectory() as name, Cluster.up(Path(name) / "slurm", options) as found:
        folder = Path(name)
        pack(folder)
        cases = settings.case or list(CASES)
        report_parts(
            "recovery", {case: measure(found, folder, case, settings.rounds) for case in cases}
        )


if __name__ == "__main__":
    main()
