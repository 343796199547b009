"""Explanations of why a run ended, waits, or was interrupted: sentences from an `Overview`.
Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hpckit.events.end_reasons import INTERRUPTED, KINDS
from hpckit.report.error_location import find_error_line
from hpckit.report.overview import Overview
from hpckit.report.present_problems import present_problems
from hpckit.report.run_state import RunState
from hpckit.slurm.pending_reasons import awaited_jobs, explain, is_of_nodes, is_singleton
from hpckit.slurm.sbatch_answers import explain_refusal
from hpckit.slurm.squeue import SlurmJob
from hpckit.text.quantities import ago, moment, span, times

_JOB_ENDS = {
    "TIMEOUT": "it ran into its time limit",
    "NODE_FAIL": "one of its nodes failed",
    "OUT_OF_MEMORY": "it used more memory than it requested (cluster.slurm.memory)",
    "CANCELLED": "it was cancelled",
    "PREEMPTED": "it was preempted",
    "FAILED": "it ended with an error",
    "BOOT_FAIL": "its nodes did not boot",
    "DEADLINE": "Slurm ended it at its deadline",
}


@dataclass(frozen=True)
class RetryBudget:
    """The number of failures in a row without progress, and the retry budget."""

    key: str
    used: int
    allowed: int


@dataclass(frozen=True)
class Fact:
    """A line of the answer, which `name` begins."""

    name: str
    text: str


@dataclass(frozen=True)
class Explanation:
    """The answer to why a run is in its state."""

    facts: tuple[Fact, ...]
    commands: tuple[str, ...]
    """Commands to type."""

    def record(self) -> dict[str, Any]:
        return {"facts": [asdict(fact) for fact in self.facts], "commands": list(self.commands)}


def explain_run(it: Overview, budget: RetryBudget | None, now: float) -> Explanation:
    """Explain why the run is in its state.

    Args:
        budget: of the kind of its verdict, where there is one.
        now: seconds since the epoch.
    """
    facts = [Fact("state", _state(it, now))]
    if it.state in (RunState.QUEUED, RunState.WAITING) and it.waiting_job:
        facts += _of_waiting(it, it.waiting_job, now)
    if it.state in (RunState.RUNNING, RunState.STARTING):
        facts += _of_blocked(it)
    if it.verdict is not None and it.state is not RunState.QUEUED:
        facts += _of_verdict(it, now)
    if budget is not None:
        facts.append(Fact("budget", _of_budget(budget)))
    if it.progress.failure is not None and it.state is RunState.FAILED:
        facts.append(Fact("error", f"the supervisor failed: {it.progress.failure}"))
    if it.state is RunState.DEAD:
        facts.append(Fact("why", dead_reason(it)))
    if it.progress.interruptions and it.is_alive:
        facts.append(Fact("so far", _of_interruptions(it)))
    facts += _of_refusals(it)
    if (degraded := it.progress.degraded) is not None and _is_relevant(it, degraded):
        facts.append(Fact("degraded", degraded))
    facts += [Fact(name, text) for name, text in present_problems(it, now)]
    facts.append(Fact("next", _next(it)))
    return Explanation(tuple(facts), commands(it))


def commands(it: Overview) -> tuple[str, ...]:
    """Return the commands that one would type next, or pass on."""
    return (*_of_state(it), *(f"{bad.for_admin}  # by an administrator" for bad in it.bad))


def _of_state(it: Overview) -> tuple[str, ...]:
    path = shlex.quote(str(it.run.path))
    if it.spec is None and it.word != "done":  # without which no job of it can be submitted
        return (f"hpckit logs {path}",)
    match it.state:
        case RunState.RUNNING | RunState.STARTING:
            return (f"hpckit logs {path} -f",)
        case RunState.QUEUED | RunState.WAITING:
            return (f"hpckit status {path}",)
        case RunState.ENDED if it.word == "done":
            return (f"hpckit report {path}",)
        case RunState.ENDED if _is_given_up(it):
            return (f"hpckit logs {path}", f"hpckit resume {path}")
        case RunState.ENDED if it.word == "permanent":
            return (f"hpckit logs {path} --first-error",)
        case RunState.ENDED if it.verdict is not None and it.verdict.get("error"):
            return (f"hpckit logs {path} --first-error", f"hpckit resume {path}")
        case RunState.UNKNOWN:
            return (f"hpckit logs {path}",)
        case RunState.DEAD | RunState.FAILED:
            return (f"hpckit logs {path}", f"hpckit resume {path}")
    return (f"hpckit resume {path}",)


def _is_given_up(it: Overview) -> bool:
    """Returns whether the run ended because its jobs gave no new checkpoint, and not because of an
    error."""
    reason = str((it.verdict or {}).get("reason"))
    return it.word == "permanent" and "retry.jobs_without_checkpoint" in reason


def _state(it: Overview, now: float) -> str:
    p = it.progress
    step = f"step {p.step:,}" + (f" of {p.steps:,}" if p.steps else "")
    at = "" if it.is_silent else f", at {step}"
    match it.state:
        case RunState.RUNNING:
            return f"running{at}, which ended {ago(p.step_time, now)}" if at else "running"
        case RunState.STARTING:
            return f"starting (processes, rendezvous, restore){at}"
        case RunState.QUEUED:
            return "queued: it has not started"
        case RunState.WAITING:
            return f"waiting{at}: its next job continues it"
        case RunState.ENDED if _is_given_up(it):
            return f"{it.word}: it was given up, as its jobs gave no new checkpoint{at}"
        case RunState.ENDED:
            return f"{it.word}: {end_words(it)}{at}"
        case RunState.FAILED:
            return f"failed{at}"
        case RunState.UNKNOWN:
            return f"unknown{at}: no process holds its lock, and {unknown_reason(it)}"
    return f"dead{at}: no process, no job, no final verdict"


def end_words(it: Overview) -> str:
    """Return what the verdict of a run that has ended means."""
    if it.word == "done" and it.is_program:
        return "the program has ended"
    return KINDS.get(it.word, "ended")


def unknown_reason(it: Overview) -> str:
    """Return why the state of a run is unknown."""
    if job := next((job for job in it.jobs if job.is_unknown), None):
        return f"job {job.number} is in state {job.state}, whose meaning is not known here"
    return "it is unknown whether a job waits, because Slurm does not answer"


def _of_waiting(it: Overview, job: SlurmJob, now: float) -> Iterator[Fact]:
    reason = explain(job.reason)
    meaning, advice = reason.meaning, reason.advice
    if job.reason == "Dependency":
        meaning, advice = _of_dependency(it, job, meaning, advice)
    if excluded := _exclusion(it, job):
        meaning, advice = excluded
    yield Fact("waits", f"job {job.number}, {job.reason}: {meaning}")
    if job.start is not None:
        left = f", in {span(job.start - now)}" if job.start > now else ""
        text = f"Slurm expects it to start at {moment(job.start, now)}{left}"
        is_guess = job.reason not in ("BeginTime", "Reservation")
        yield Fact("begins", text + (", or earlier if other jobs end early" if is_guess else ""))
    else:
        yield Fact("begins", "Slurm has not estimated a start time yet")
    yield Fact("to do", advice.replace("JOB", job.number))


def _of_blocked(it: Overview) -> Iterator[Fact]:
    """Yield what keeps the successor of a running job from ever starting, and the advice."""
    if it.waiting_job is not None and it.blocked is not None:
        what, advice = it.blocked
        yield Fact("successor", f"job {it.waiting_job.number} cannot start: {what}")
        yield Fact("to do", advice)


def _of_dependency(it: Overview, job: SlurmJob, meaning: str, advice: str) -> tuple[str, str]:
    """Return what a job waits for that waits for other jobs, and the advice."""
    mine = [other.number for other in it.current_jobs if other.number != job.number]
    awaited = awaited_jobs(job.dependency)
    others = [number for number in awaited if number not in {*it.numbers, *mine}]
    if is_singleton(job.dependency):
        others += [other.number for other in it.same_name_jobs]
    if others:
        which = f"job {others[0]}" if len(others) == 1 else f"jobs {', '.join(others)}"
        of_name = " of the same name" if is_singleton(job.dependency) else ""
        return (
            f"it waits for {which}{of_name}, not of this run",
            f"wait, or start it without waiting: scontrol update JobId={job.number} Dependency=",
        )
    if not (awaited or is_singleton(job.dependency)):
        return meaning, advice
    return "the previous job of this run has not ended yet", "nothing: it starts after that job"


def _exclusion(it: Overview, job: SlurmJob) -> tuple[str, str] | None:
    """Return the meaning and the advice if nodes that the run excludes are what the job may wait
    for, else None."""
    hosts = ", ".join(it.progress.excluded)
    if not hosts or not is_of_nodes(job.reason):
        return None
    own = it.spec.cluster.slurm.exclude if it.spec and it.spec.cluster.slurm else ()
    words = ("scontrol", "update", f"jobid={job.number}", f"excnodelist={','.join(own)}")
    return (
        f"hpckit excludes {hosts} from it, and the nodes that are left do not satisfy its request",
        f"{shlex.join(words)} lets it have {hosts} again; or wait for other nodes",
    )


def _of_verdict(it: Overview, now: float) -> Iterator[Fact]:
    verdict = it.verdict or {}
    yield Fact(
        "before" if it.is_alive else "verdict",
        f"generation {verdict.get('generation')}, {ago(verdict.get('time'), now)}: "
        f"{verdict.get('kind')}: {verdict.get('reason')}",
    )
    if where := error_place(it):
        yield Fact("where", where)


def error_place(it: Overview) -> str | None:
    """Return file and line of the verdict's error, in the user's code if possible."""
    verdict = it.verdict or {}
    error = verdict.get("error")
    if not error:
        return None
    return find_error_line(str(error.get("traceback")), it.run.code(int(verdict["submission"])))


def _of_budget(budget: RetryBudget) -> str:
    in_a_row = " in a row" if budget.used > 1 else ""
    return (
        f"failed {times(budget.used)}{in_a_row} without a new checkpoint; "
        f"{budget.key}={budget.allowed} retries are allowed"
    )


def dead_reason(it: Overview) -> str:
    """Return why nothing of a dead run continues."""
    p, later, job = it.progress, it.later_job, it.ended_job
    if later is not None and later.state in _JOB_ENDS:
        return f"job {later.number}, {_end_of(later)}, before its supervisor began"
    if p.ended is not None:
        how = INTERRUPTED.get(p.ended, p.ended)
        ended = f"its last job ended ({how})" if p.job is None else f"job {p.job} ended ({how})"
        return f"{ended}, and no job continues the run{_why_none(it)}"
    if job is not None and job.state in _JOB_ENDS:
        return f"job {job.number}, {_end_of(job)}, without a verdict"
    if it.is_slurm and not it.numbers:
        return "Slurm never accepted a job of this run: sbatch refused it or could not reach Slurm"
    if p.begun is None:
        return "no supervisor has ever started; the logs of submitit and Slurm may show the reason"
    return "the supervisor ended without a verdict: it was killed, or its machine failed"


def _end_of(job: SlurmJob) -> str:
    return f"{job.state}: {_JOB_ENDS[job.state]}"


def _why_none(it: Overview) -> str:
    if it.spec is not None and it.spec.launch.continuation == "none":
        return ": launch.continuation=none"
    if it.progress.no_successor is not None:
        return f": {it.progress.no_successor}"
    if it.progress.successor is not None:
        return f": job {it.progress.successor}, which was to, is no longer in Slurm's queue"
    return ""


def _of_refusals(it: Overview) -> Iterator[Fact]:
    """Yield what sbatch has refused, and what helps."""
    message = it.progress.no_successor if it.state is RunState.DEAD else it.no_successor
    if it.progress.refused is not None and not it.is_alive:
        message = it.progress.refused
        yield Fact("refused", f"Slurm has not accepted the job that was submitted last: {message}")
    if message is not None and (found := explain_refusal(message)) is not None:
        again = "" if it.is_alive else f"; then hpckit resume {shlex.quote(str(it.run.path))}"
        yield Fact("refusal", found.meaning)
        yield Fact("to do", f"{found.advice}{again}")


def _is_relevant(it: Overview, degraded: str) -> bool:
    """Returns whether a degradation still matters, and is not in another line."""
    if it.is_alive:
        return True
    return it.word not in ("done", "stopped") and degraded != it.progress.no_successor


def _of_interruptions(it: Overview) -> str:
    found = it.progress.interruptions
    parts = [f"{INTERRUPTED.get(kind, kind)} ({times(n)})" for kind, n in found.items()]
    verb = "recovered from" if it.state is RunState.RUNNING else "was interrupted by"
    return f"it {verb} {', '.join(parts)}"


def _next(it: Overview) -> str:
    saved = it.progress.saved_step
    start = f"from the checkpoint at step {saved:,}" if saved else "from the beginning"
    if not saved and it.is_program:
        start = "from the newest checkpoint that the program finds"
    if it.spec is None and not it.is_alive and it.word != "done":
        return (
            "nothing happens automatically; its spec cannot be read (see: note), so run the same "
            f"launch command again; the run continues {start}"
        )
    match it.state:
        case RunState.RUNNING | RunState.STARTING:
            if it.no_successor is not None:
                return (
                    f"it recovers automatically {start}, but only within this job; "
                    f"no successor is queued: {it.no_successor}"
                )
            follows = f"; job {it.progress.successor} follows" if it.progress.successor else ""
            if follows and it.blocked:
                follows = f", but only within this job: job {it.progress.successor} cannot start"
            return f"after an interruption it continues automatically {start}{follows}"
        case RunState.QUEUED | RunState.WAITING:
            if it.waiting_job and _exclusion(it, it.waiting_job):
                return f"it continues {start} when Slurm has nodes for its job (see: to do)"
            if it.blocked:
                return f"it continues {start} when its job can start (see: to do)"
            return f"it continues automatically {start}"
        case RunState.ENDED if it.word == "done":
            return f"nothing; the newest checkpoint is at step {saved:,}" if saved else "nothing"
        case RunState.ENDED if _is_given_up(it):
            return (
                "nothing happens automatically; hpckit resume, with other values of these keys, "
                f"continues {start}"
            )
        case RunState.ENDED if it.word == "permanent":
            return (
                f"fix the error and run the same launch command again, which uses your new code; "
                f"the run continues {start}"
            )
        case RunState.ENDED if it.word == "oom":
            return (
                "run the same launch command again with settings that need less memory, or run "
                f"hpckit resume; the run continues {start}"
            )
        case RunState.ENDED | RunState.DEAD | RunState.FAILED:
            return f"nothing happens automatically; hpckit resume continues {start}"
    if any(job.is_unknown for job in it.jobs):
        return "run this command again when Slurm reports another state"
    return "run this command again when Slurm answers"
