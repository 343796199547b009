"""The last thing that happened to a run, in one plain sentence for a narrow screen. Pure."""

from __future__ import annotations

from hpckit.events.end_reasons import INTERRUPTED
from hpckit.report.interruptions import RunInterruption
from hpckit.report.overview import Overview
from hpckit.report.run_state import RunState
from hpckit.report.why import dead_reason, end_words, unknown_reason
from hpckit.slurm.pending_reasons import explain
from hpckit.text.quantities import ago

_SAYS_ENOUGH = ("done", "stopped", "preempted", "time_limit", "evicted")
"""Verdicts whose own reason adds nothing to their description."""


def last_cause(it: Overview, now: float) -> str:
    """Return what ended or interrupted the run last, and whether it has recovered; or what it waits
    for. Empty: nothing of this kind has happened.

    Args:
        now: seconds since the epoch.
    """
    before = it.progress.last_interruption
    match it.state:
        case RunState.RUNNING:
            return "" if before is None else f"{_of(before, now)}; it has recovered"
        case RunState.STARTING:
            return "" if before is None else f"{_of(before, now)}; it is starting again"
        case RunState.QUEUED | RunState.WAITING:
            waits = _waiting(it)
            return waits if before is None else f"{_of(before, now)}; {waits}"
        case RunState.ENDED:
            return _ended(it)
        case RunState.FAILED:
            return f"the supervisor failed: {it.progress.failure}"
        case RunState.DEAD:
            return dead_reason(it)
    return unknown_reason(it)


def _of(one: RunInterruption, now: float) -> str:
    return f"{INTERRUPTED.get(one.kind, one.kind)} at step {one.step:,}, {ago(one.time, now)}"


def _waiting(it: Overview) -> str:
    job = it.waiting_job
    if job is None:
        return "its job has not started"
    return f"job {job.number} waits: {explain(job.reason).meaning}"


def _ended(it: Overview) -> str:
    words = end_words(it)
    reason = str((it.verdict or {}).get("reason") or "")
    return words if it.word in _SAYS_ENOUGH or not reason else f"{words}: {reason}"
