"""Carries out a fault plan by signals, on this machine or in a Slurm job."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from hpckit.faults.checkpoint_damage import flip_bit
from hpckit.faults.fault_commands import run_command
from hpckit.faults.fault_plan import DrillError, DrillKind, FaultPlan, ImpossibleDrillError
from hpckit.faults.injection.failing_syscalls import CANNOT, UnsupportedFaultError
from hpckit.faults.injection.process_faults import (
    STOPPED_S,
    UNTIL_EOF,
    ProcessFault,
    inject_fault,
)
from hpckit.faults.injection.shard_corruption import corrupt_shard
from hpckit.report.overview import Overview
from hpckit.rundir.code_snapshot.module_names import (
    PROCESS_FAULTS,
    SHARD_CORRUPTION,
    module_in,
)
from hpckit.rundir.directory import RunDir
from hpckit.rundir.supervisor_process import find_supervisor


def execute_fault_plan(it: Overview, plan: FaultPlan) -> str:
    """Carry out the plan and describe what was done in a line.

    Raises:
        ImpossibleDrillError: it cannot be done where the run is.
        DrillError: it was not done.
        SupervisorError: the supervisor is on another machine.
    """
    if plan.kind in _LOCAL_FAULTS:
        return _request(it, plan)
    if plan.kind is DrillKind.REQUEUE:
        run_command(["scontrol", "requeue", str(it.progress.job)], "scontrol")
        return f"requeued: job {it.progress.job}"
    if plan.path is not None:
        return _flip(plan.path)
    if plan.cache is not None:
        return f"changed: {_corrupt_shard(it, plan.cache, plan)}"
    fault = ProcessFault(plan.kind.value)
    hit = _inject_in_job(it, fault, plan) if it.is_slurm else _inject_here(it.run, fault, plan)
    if not hit:
        raise DrillError(f"{plan.what}: the process no longer exists")
    return f"hit: process{'es' if len(hit) > 1 else ''} {' '.join(hit)}"


def _request(it: Overview, plan: FaultPlan) -> str:
    if it.is_slurm:
        job = str(it.progress.job)
        if plan.kind is DrillKind.TIMEOUT:
            run_command(
                ["scontrol", "update", f"JobId={job}", f"EndTime={_end_of_job(it)}"], "scontrol"
            )
        run_command(["scancel", *_BY_SLURM[plan.kind], job], "scancel")
        if plan.kind is DrillKind.SUPERVISOR_STOP:
            time.sleep(STOPPED_S)
            run_command(["scancel", "--batch", "--signal=CONT", job], "scancel")
        return f"signalled: job {job}"
    try:
        supervisor = find_supervisor(it.run)
        if supervisor is None:
            raise DrillError(f"{it.run.name} has ended in the meantime")
        supervisor.send_signal(_LOCAL_FAULTS[plan.kind])
        if plan.kind is DrillKind.SUPERVISOR_STOP:
            time.sleep(STOPPED_S)
            supervisor.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:
        raise DrillError(f"{it.run.name} has ended in the meantime") from None
    return f"signalled: process {supervisor.pid}"


def _flip(path: Path) -> str:
    try:
        flip_bit(path)
    except OSError as error:
        raise DrillError(str(error)) from error
    return f"changed: {path}"


_BY_SLURM = {
    DrillKind.PREEMPT: ("--signal=TERM",),
    DrillKind.TIMEOUT: ("--batch", "--signal=USR2"),
    DrillKind.SUPERVISOR: ("--batch", "--signal=KILL"),
    DrillKind.SUPERVISOR_STOP: ("--batch", "--signal=STOP"),
}
_LOCAL_FAULTS = {
    DrillKind.PREEMPT: signal.SIGTERM,
    DrillKind.TIMEOUT: signal.SIGUSR2,
    DrillKind.SUPERVISOR: signal.SIGKILL,
    DrillKind.SUPERVISOR_STOP: signal.SIGSTOP,
}


def _end_of_job(it: Overview) -> str:
    """Return the end of the job, as far from now as Slurm announces it to the job."""
    assert it.spec is not None
    assert it.spec.cluster.slurm is not None  # the spec was checked
    end = time.time() + it.spec.cluster.slurm.notice_s
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(end))


def _inject_here(run: RunDir, fault: ProcessFault, plan: FaultPlan) -> list[str]:
    find_supervisor(run)  # or it is on another machine
    try:
        return [str(pid) for pid in inject_fault(str(run.path), fault, plan.number, plan.slowdown)]
    except UnsupportedFaultError as error:
        raise ImpossibleDrillError(str(error)) from error


def _inject_in_job(it: Overview, fault: ProcessFault, plan: FaultPlan) -> list[str]:
    words = [PROCESS_FAULTS, str(it.run.path), fault.value, str(plan.number)]
    longer_s = 0.0
    if plan.slowdown is not None:
        words += [f"{plan.slowdown.percent:g}", f"{plan.slowdown.seconds:g}"]
        longer_s = plan.slowdown.seconds
    return _on_node(it, plan.node, words, longer_s=longer_s).split()


def _corrupt_shard(it: Overview, cache: Path, plan: FaultPlan) -> str:
    if it.is_slurm:
        words = (SHARD_CORRUPTION, str(cache), str(plan.number))
        return _on_node(it, plan.node, words).strip()
    find_supervisor(it.run)  # or the cache is on another machine
    try:
        return str(corrupt_shard(cache, plan.number))
    except UnsupportedFaultError as error:
        raise ImpossibleDrillError(str(error)) from error
    except OSError as error:
        raise DrillError(str(error)) from error


def _on_node(it: Overview, node: int, words: Sequence[str], longer_s: float = 0.0) -> str:
    """Return the output of a module of the run's code snapshot, which all nodes can read, run by a
    step of the job.

    Args:
        longer_s: seconds that it takes by itself.
    """
    if node >= len(it.progress.hosts):
        raise DrillError(f"job {it.progress.job} has no node {node}")
    assert it.spec is not None
    assert it.spec.cluster.slurm is not None  # the spec was checked
    code = it.run.code(it.run.submission_numbers()[-1])
    command = [
        *("srun", f"--jobid={it.progress.job}", f"--nodelist={it.progress.hosts[node]}"),
        *("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none"),
        *("--quiet", "--job-name=hpckit-drill"),
        *("env", f"PYTHONPATH={code}", "PYTHONSAFEPATH=1", f"{UNTIL_EOF}=1"),
        *(it.spec.cluster.slurm.python or sys.executable, "-m", module_in(code, words[0])),
        *words[1:],
    ]
    return run_command(command, "srun", never=CANNOT, longer_s=longer_s, until_eof=True)
