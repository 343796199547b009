"""`hpckit cancel`: ends a run and its successor job."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict

import psutil

from checkpointing.service.client.service_stop import end_services
from hpckit.agent.verdict_record import Verdict, VerdictKind
from hpckit.config.spec import RunSpec
from hpckit.config.spec_error import NoAnswerError
from hpckit.events.event_log import EventLog
from hpckit.events.schema import RunEnded
from hpckit.report.overview import Overview, Queue, read_overview
from hpckit.report.run_state import RunState
from hpckit.rundir.directory import RunDir, lock_paths, store_and_name
from hpckit.rundir.lock import hold_all
from hpckit.rundir.supervisor_process import find_supervisor, starting_process
from hpckit.slurm.scontrol import run_scancel
from hpckit.slurm.squeue import QueueError
from hpckit.system.atomic_files import write_json
from hpckit.system.child_processes import kill_strays, kill_tree

_TIMEOUT_S = 60.0
_TICK_S = 0.5
_SERVICES_S = 30.0
"""Seconds for staged snapshots in this machine's memory to become durable."""


class CancelError(RuntimeError):
    """Raised if a run could not be ended; the message says what to do."""


def cancel_run(
    it: Overview, *, saves: bool, within_s: float, say: Callable[[str], None]
) -> Overview:
    """Ends the run, its successor first, waits until nothing of it is left, and returns its state
    after that.

    With `saves`, its supervisor gets SIGINT, at which all ranks save and leave, however long that
    takes. Otherwise a Slurm job has KillWait to save, and a run on this machine no time.

    Raises:
        CancelError: the run has not ended in time.
        NoAnswerError: squeue has no answer, before or afterwards.
        QueueError: scancel has none.
        SupervisorError: its supervisor is on another machine.
        RunHeldError: another process has resumed the run meanwhile.
    """
    if it.spec is None:
        raise CancelError(f"{it.run.name}: {it.problem}; nothing was done")
    if it.is_slurm:
        _end_jobs(it, saves, say)
    else:
        _end_local_run(it.run, saves, say)
    after = _wait(it, within_s)
    if after.state is not RunState.ENDED:
        _conclude(after)
    return read_overview(it.run, Queue())


def _end_jobs(it: Overview, saves: bool, say: Callable[[str], None]) -> None:
    if it.has_no_answer:
        raise NoAnswerError([f"{it.problem}; nothing was done"])
    if it.problem is not None and not it.jobs:
        raise CancelError(f"{it.problem}; nothing was done")
    waiting = [job.number for job in it.jobs if job.is_waiting]
    active = [job.number for job in it.current_jobs if not job.is_waiting]
    for number in waiting:
        say(f"pending job {number} is cancelled")
    if waiting:
        _scancel(["--state=PENDING", *waiting])  # a job that starts now is found below
    if active and saves and it.owner is not None:
        say(f"job {active[0]}: all ranks are asked to save and exit")
        _scancel(["--batch", "--signal=INT", *active])
    elif active:
        say(f"job {', '.join(active)} is cancelled")
        _scancel(active)


def _end_local_run(run: RunDir, saves: bool, say: Callable[[str], None]) -> None:
    supervisor = find_supervisor(run)
    if supervisor is None:
        if (starting := starting_process(run)) is not None:
            kill_tree(starting)
        return
    if saves:
        say("all ranks are asked to save and exit")
        _send(supervisor, signal.SIGINT)
    else:
        say(f"the supervisor, process {supervisor.pid}, is killed, and its workers with it")
        _send(supervisor, signal.SIGKILL)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    """Sends a signal. psutil checks that the process id was not reused since."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _wait(it: Overview, within_s: float) -> Overview:
    """Waits until nothing of the run is left. Jobs of it that start meanwhile are cancelled,
    too."""
    deadline = time.monotonic() + within_s
    while True:
        now = read_overview(it.run, Queue())
        if not (now.current_jobs or now.owner or now.state is RunState.STARTING):
            if now.has_no_answer and now.state is RunState.UNKNOWN:
                raise NoAnswerError([f"{now.problem}; it is not known whether it has ended"])
            return now
        if time.monotonic() > deadline:
            raise CancelError(_still_running(now, within_s))
        begun = {job.number for job in now.current_jobs if not job.is_waiting}
        known = {job.number for job in it.current_jobs if not job.is_waiting}
        late = [job.number for job in now.jobs if job.is_waiting]
        if again := [*late, *sorted(begun - known)]:
            _scancel(again)
        time.sleep(_TICK_S)


def _still_running(it: Overview, within_s: float) -> str:
    jobs = " ".join(job.number for job in it.current_jobs)
    what = f"jobs {jobs} are" if jobs else f"{it.owner} is"
    force = (
        f"scancel --full --signal=KILL {jobs}" if jobs else f"kill -9 {it.owner and it.owner.pid}"
    )
    return (
        f"{it.run.name}: after {within_s:.0f} s {what} still there; wait with the same command, "
        f"or, losing what is not saved: {force}"
    )


def _conclude(it: Overview) -> None:
    """Does what a supervisor would have done at the end of the run: ends its processes and records
    its verdict."""
    assert it.spec is not None  # it was read before anything was ended
    with hold_all(lock_paths(it.spec, it.run), "hpckit cancel"):
        if not it.is_slurm:
            _clean_up(it.run, it.spec)
        _record(it)


def _clean_up(run: RunDir, spec: RunSpec) -> None:
    """Ends the processes that a killed supervisor has left on this machine."""
    kill_strays(run.path)
    end_services(*store_and_name(spec, run), _SERVICES_S)


def _record(it: Overview) -> None:
    """Writes the verdict. The newest checkpoint may be newer than the one in the verdict."""
    number, p = it.run.submission_numbers()[-1], it.progress
    how = "without a last save" if p.begun else "before any of its steps"
    verdict = Verdict(VerdictKind.STOPPED, True, f"ended by hpckit cancel, {how}")
    with EventLog(it.run.events, submission=number) as events:
        events.emit(RunEnded(verdict=verdict.kind, status=verdict.exit_status))
    saved = {"generation": p.generation, "submission": number, "saved_step": p.saved_step}
    about = {**saved, "steps": p.steps, "time": time.time()}
    write_json(it.run.verdict, {**asdict(verdict), **about})


def _scancel(words: Sequence[str]) -> None:
    if (problem := run_scancel(words, _TIMEOUT_S)) is not None:
        raise QueueError(problem)
