"""`hpckit drill`: real faults in a run that is under way, on this machine or in its Slurm job."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import psutil

from hpckit.elastic.strike import Fault, strike
from hpckit.report.overview import Overview
from hpckit.report.state import State
from hpckit.run.directory import RunDir
from hpckit.run.events import Event, read_events
from hpckit.run.supervisor import find_supervisor

_PATIENCE_S = 120.0


class DrillError(RuntimeError):
    """The fault cannot be played; says why."""


class DrillKind(StrEnum):
    """What to play."""

    PREEMPT = "preempt"
    TIMEOUT = "timeout"
    WORKER = "worker"
    AGENT = "agent"
    NODE = "node"
    HANG = "hang"


@dataclass(frozen=True)
class Plan:
    """What is about to be done to whom, and what is to come of it."""

    kind: DrillKind
    what: str
    expect: str
    number: int = 0
    """Of the rank or the node."""
    node: int = 0
    """Where that is."""


def plan_drill(it: Overview, kind: DrillKind, rank: int | None, node: int | None) -> Plan:
    """What a drill of this kind does to the run; ranks and nodes count from the end if not given.

    Raises:
        DrillError: it cannot be played on this run now.
    """
    if it.state is not State.RUNNING:
        raise DrillError(f"{it.run.name} is {it.word}: a drill takes a run that trains")
    if it.spec is None:
        raise DrillError(f"{it.run.name}: {it.problem}")
    match kind:
        case DrillKind.PREEMPT | DrillKind.TIMEOUT:
            return _plan_request(it, kind)
        case DrillKind.NODE | DrillKind.AGENT:
            return _plan_loss(it, kind, _chosen("node", node, it.progress.nodes))
    chosen = _chosen("rank", rank, it.progress.ranks)
    where = _node_of(it, chosen)
    _require_retry("retry.in_place", it.spec.retry.in_place)
    if kind is DrillKind.HANG:
        return _plan_hang(it, chosen, where)
    what = f"SIGKILL of the worker of rank {chosen}, on node {where}"
    expect = "all workers are started again within the generation"
    return Plan(kind, what, f"{expect}, from step {it.progress.saved_step:,}", chosen, where)


def _plan_loss(it: Overview, kind: DrillKind, node: int) -> Plan:
    assert it.spec is not None
    _require_retry("retry.infra", it.spec.retry.infra)
    rest = " and all its processes" if kind is DrillKind.NODE else ""
    what = f"SIGKILL of the agent of node {node}{rest}"
    expect = "the generation ends as infra; the next one begins with a new agent"
    return Plan(kind, what, f"{expect}, from step {it.progress.saved_step:,}", node, node)


def _plan_hang(it: Overview, rank: int, node: int) -> Plan:
    assert it.spec is not None
    limit_s = it.spec.hang.step_s
    if limit_s is None:
        raise DrillError("hang.step_s is null: nobody would look for a rank that hangs")
    what = f"SIGSTOP of the worker of rank {rank}, on node {node}"
    expect = f"in {limit_s:g} s all stacks are written down, and all workers started again"
    return Plan(DrillKind.HANG, what, expect, rank, node)


def _plan_request(it: Overview, kind: DrillKind) -> Plan:
    assert it.spec is not None
    follows = "every rank saves and leaves; the next generation goes on, nothing is lost"
    if not it.is_slurm:
        name = "SIGTERM" if kind is DrillKind.PREEMPT else "SIGUSR2"
        return Plan(kind, f"{name} to the supervisor, as Slurm would send it", follows)
    job, successor = it.progress.job, it.progress.successor
    if successor is None:
        raise DrillError(
            f"job {job} has no successor in the queue (launch.continuation="
            f"{it.spec.launch.continuation}): the run would end here"
        )
    expect = f"every rank saves and leaves, job {job} ends, and job {successor} goes on"
    if kind is DrillKind.PREEMPT:
        what = f"SIGTERM to the steps of job {job}, as Slurm does to preempt a job"
    else:
        what = f"the time limit of job {job} moved to now, and SIGUSR2, as Slurm sends before it"
    return Plan(kind, what, f"{expect}, nothing is lost")


def _chosen(what: str, wanted: int | None, count: int) -> int:
    if wanted is None:
        return count - 1
    if wanted >= count:
        raise DrillError(f"--{what}: {wanted} is none of the {count} of this generation")
    return wanted


def _require_retry(key: str, allowed: int) -> None:
    if not allowed:
        raise DrillError(f"{key}=0: the run would end of it, and not come back")


def _node_of(it: Overview, rank: int) -> int:
    events = read_events(it.run.events)
    found = [e for e in events if e.kind == "worker_started" and _is_of(e, it, rank)]
    if not found:
        raise DrillError(f"--rank: {rank} is not there in generation {it.progress.generation}")
    return int(found[-1]["node"])


def _is_of(event: Event, it: Overview, rank: int) -> bool:
    return (event["rank"], event["generation"]) == (rank, it.progress.generation)


def play(it: Overview, plan: Plan) -> str:
    """Do it; what was done, in a line.

    Raises:
        DrillError: it was not done.
        SupervisorError: the supervisor is on another machine.
    """
    if plan.kind in (DrillKind.PREEMPT, DrillKind.TIMEOUT):
        return _request(it, plan)
    fault = Fault(plan.kind.value)
    hit = _strike_job(it, fault, plan) if it.is_slurm else _strike_here(it.run, fault, plan)
    if not hit:
        raise DrillError(f"{plan.what}: there is no such process any more")
    return f"hit: process{'es' if len(hit) > 1 else ''} {' '.join(hit)}"


def _request(it: Overview, plan: Plan) -> str:
    is_preemption = plan.kind is DrillKind.PREEMPT
    if it.is_slurm:
        job = str(it.progress.job)
        if not is_preemption:
            _run(["scontrol", "update", f"JobId={job}", f"EndTime={_end_of_job(it)}"])
        words = ["--signal=TERM"] if is_preemption else ["--batch", "--signal=USR2"]
        _run(["scancel", *words, job])
        return f"signalled: job {job}"
    try:
        supervisor = find_supervisor(it.run)
        if supervisor is None:
            raise DrillError(f"{it.run.name} has ended meanwhile")
        supervisor.send_signal(signal.SIGTERM if is_preemption else signal.SIGUSR2)
    except psutil.NoSuchProcess:
        raise DrillError(f"{it.run.name} has ended meanwhile") from None
    return f"signalled: process {supervisor.pid}"


def _end_of_job(it: Overview) -> str:
    """So far from now as Slurm tells the job of it."""
    assert it.spec is not None
    assert it.spec.cluster.slurm is not None  # the spec was checked
    end = time.time() + it.spec.cluster.slurm.notice_s
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(end))


def _strike_here(run: RunDir, fault: Fault, plan: Plan) -> list[str]:
    find_supervisor(run)  # or it is on another machine
    return [str(pid) for pid in strike(str(run.path), fault, plan.number)]


def _strike_job(it: Overview, fault: Fault, plan: Plan) -> list[str]:
    """By a step of the job, on the node, with the run's own code: that is visible there."""
    if plan.node >= len(it.progress.hosts):
        raise DrillError(f"job {it.progress.job} has no node {plan.node}")
    assert it.spec is not None
    assert it.spec.cluster.slurm is not None  # the spec was checked
    code = it.run.code(it.run.submission_numbers()[-1])
    return _run(
        [
            *("srun", f"--jobid={it.progress.job}", f"--nodelist={it.progress.hosts[plan.node]}"),
            *("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none"),
            *("--quiet", "--job-name=hpckit-drill"),
            *("env", f"PYTHONPATH={code}", "PYTHONSAFEPATH=1"),
            *(it.spec.cluster.slurm.python or sys.executable, "-m", "hpckit.elastic.strike"),
            *(str(it.run.path), fault.value, str(plan.number)),
        ]
    ).split()


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DrillError(f"{command[0]}: {error}") from error
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise DrillError(f"{command[0]}: {said}")
    return done.stdout
