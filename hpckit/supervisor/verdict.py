"""The verdict on a generation, as a pure function of the reports of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpckit.agent.error_repetition import MOST_REPEATS, place_of
from hpckit.agent.exit_report import (
    FAULTY_NODE,
    HANG,
    ExitReport,
    NodeExit,
    WorkerError,
    order_of,
)
from hpckit.agent.verdict_record import Verdict, VerdictKind
from hpckit.config.spec import RetrySpec
from hpckit.events.schema import Event, GenerationEnded, GenerationStarted
from hpckit.events.since_last_start import since_start
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.ipc.memory_kinds import MemoryKind
from hpckit.text.error_words import names_gpu

_ADVICE = {
    MemoryKind.GPU: "out of GPU memory; a lower train.micro_batch or more GPUs help",
    MemoryKind.HOST: "out of host memory; a higher cluster.slurm.memory, "
    "a lower data.prefetch "
    "or checkpoint.staging=buckets help",
}


_FIX = "fix it, and type the same launch command"
_TWICE = "twice before the first step, with the same message"


@dataclass(frozen=True)
class GenerationEnd:
    """The end of a generation as the supervisor observed it."""

    request: WorkerRequest
    """The request that was passed on to the generation."""
    reports: tuple[ExitReport, ...]
    """Reports of the agents that sent one."""
    lost: tuple[str, ...]
    """Names of the agents that were lost without a report."""
    progress: bool
    """Whether a newer checkpoint was committed during the generation."""
    unhealthy: tuple[str, ...] = ()
    """Unhealthy nodes, without which there are too few nodes."""
    absent: tuple[str, ...] = ()
    """Nodes on which no agent started, without which there are too few nodes."""
    is_time_up: bool = False
    """Whether Slurm was about to end the job at its time limit."""
    from_step: int = 0
    """The step of the newest checkpoint when the generation started; 0: there was none."""
    eviction: str | None = None
    """Why the request was made to replace a slow node; None: it was made for another reason."""
    is_program: bool = False
    """Whether the workers execute a program of the user."""


@dataclass(frozen=True)
class PastGeneration:
    """An earlier generation since a person started the run."""

    kind: VerdictKind
    progress: bool
    words: str | None = None
    """Normalised message (`WorkerError.words`) of the error that ended the generation before its
    first step. None: it got further, or another attempt might not meet the error."""
    place: str | None = None
    """Error, step and place (`hpckit.agent.error_repetition.place_of`) at which the generation
    ended. None: another attempt might not meet the error."""
    repeats: int = 0
    """Number of attempts, up to its last one, that ended there without a new checkpoint."""


def past_of(events: Iterable[Event]) -> list[PastGeneration]:
    """Returns the generations since a person started the run, by its events. Those of former jobs
    of the job chain count too."""
    found: list[PastGeneration] = []
    from_step = 0
    for event in since_start(events):
        match event:
            case GenerationStarted():
                from_step = event.from_step or 0
            case GenerationEnded():
                progress = (event.saved_step or 0) > from_step
                kind, repeats = VerdictKind(event.verdict), event.repeats or 0
                found.append(PastGeneration(kind, progress, event.words, event.place, repeats))
    return found


def judge_generation(
    ending: GenerationEnd, past: Sequence[PastGeneration], retry: RetrySpec
) -> Verdict:
    """Returns the verdict on `ending`, given the generations before it, oldest first."""
    exits = {report.exit for report in ending.reports}
    if refused := [report for report in ending.reports if report.exit is NodeExit.REFUSED]:
        # another node's error may be of an earlier attempt, if that node was ended before an error
        # of the present one
        error = _first_error(refused)
        what = str(error or "a worker refused to continue")
        # a worker also refuses what the attempt before it has met
        is_repeated = any(one.is_repeated for one in refused if one.error == error)
        if is_repeated and error is not None and error.is_before_step:
            what = f"{what} ({_TWICE})"
        return Verdict(VerdictKind.PERMANENT, True, what, error)
    if ending.request is not WorkerRequest.NONE:
        return _judge_requested(ending)
    if missing := _missing(ending):
        return _within_budget(VerdictKind.INFRA, missing, ending, past, retry)
    if exits == {NodeExit.DONE}:
        return Verdict(VerdictKind.DONE, True, _completed(ending))
    if killed := [report.node for report in ending.reports if report.is_oom_killed]:
        # errors of its peers may be earlier, but do not name the cause
        what = f"{_ADVICE[MemoryKind.HOST]}: the kernel killed a worker of node {killed[0]}"
        return _within_budget(VerdictKind.OOM, what, ending, past, retry)
    error = _first_error(ending.reports)
    kind, what = _failure(error)
    if is_hopeless(ending, past):
        return Verdict(VerdictKind.PERMANENT, True, f"{what} ({_TWICE})", error)
    if (times := repeats_of(ending, past)) >= MOST_REPEATS and error is not None:
        where = f"{times} times in a row at the same line after step {error.step}"
        what = f"{what} ({where}, without a new checkpoint; {_FIX})"
        return Verdict(VerdictKind.PERMANENT, True, what, error)
    return _within_budget(kind, what, ending, past, retry, error)


def _completed(ending: GenerationEnd) -> str:
    return "the program has ended on every rank" if ending.is_program else "reached the last step"


def is_hopeless(ending: GenerationEnd, past: Sequence[PastGeneration]) -> bool:
    """Returns whether two successive attempts, both of this generation or one of the previous,
    ended with the same error before the first step that they were to take."""
    words = words_before_first_step(ending)
    if words is None:
        return False
    error = _first_error(ending.reports)
    is_repeated = any(one.is_repeated for one in ending.reports if one.error == error)
    return is_repeated or (bool(past) and past[-1].words == words)


def words_before_first_step(ending: GenerationEnd) -> str | None:
    """Returns the value of `PastGeneration.words` for a generation."""
    error = _first_error(ending.reports)
    has_stepped = any(report.step > ending.from_step for report in ending.reports)
    if error is None or has_stepped or ending.request is not WorkerRequest.NONE:
        return None
    if error.is_passing or error.memory is not None or error.type == HANG:
        return None
    # a run that has trained before may not meet it on another GPU
    if ending.from_step > 0 and names_gpu(error.type, error.message):
        return None
    return error.words


def place_of_end(ending: GenerationEnd) -> str | None:
    """Returns the value of `PastGeneration.place` for a generation."""
    is_asked = ending.request is not WorkerRequest.NONE
    return None if is_asked or ending.lost else place_of(_first_error(ending.reports))


def repeats_of(ending: GenerationEnd, past: Sequence[PastGeneration]) -> int:
    """Returns the value of `PastGeneration.repeats` for a generation."""
    place, error = place_of_end(ending), _first_error(ending.reports)
    if place is None:
        return 0
    report = next(one for one in ending.reports if one.error == error)
    repeats = max(1, report.repeats)
    has_same_only = repeats > report.attempts and not ending.progress
    if has_same_only and past and past[-1].place == place:
        return past[-1].repeats + repeats
    return repeats


def _missing(ending: GenerationEnd) -> str | None:
    """Returns what the generation lost or had too few of, or None."""
    groups = (
        ("too few healthy nodes: ", ending.unhealthy),
        ("no agent started on ", ending.absent),
        ("lost ", ending.lost),
    )
    return "; ".join(f"{what}{', '.join(which)}" for what, which in groups if which) or None


def budget_of(kind: VerdictKind, retry: RetrySpec) -> int | None:
    """Returns how many generations may follow failures of this kind, or None for kinds that are no
    failure or always final."""
    budgets = {
        VerdictKind.INFRA: retry.infra,
        VerdictKind.HANG: retry.hang,
        VerdictKind.OOM: retry.oom,
        VerdictKind.CRASH: retry.crash,
    }
    return budgets.get(kind)


def _failure(error: WorkerError | None) -> tuple[VerdictKind, str]:
    """Returns the kind of failure by the first error of all ranks, and a description."""
    if error is None:
        return VerdictKind.CRASH, "workers were killed without reporting an error"
    if error.memory is not None:
        return VerdictKind.OOM, f"{_ADVICE[error.memory]}: {error}"
    kinds = {HANG: VerdictKind.HANG, FAULTY_NODE: VerdictKind.INFRA}
    return kinds.get(error.type, VerdictKind.CRASH), str(error)


def _judge_requested(ending: GenerationEnd) -> Verdict:
    exits = {report.exit for report in ending.reports}
    if exits == {NodeExit.DONE} and not ending.lost:
        return Verdict(VerdictKind.DONE, True, _completed(ending))
    saved = exits <= {NodeExit.DONE, NodeExit.LEFT} and not ending.lost
    left = "every rank exited" if ending.is_program else "every rank saved and exited"
    how = left if exits else "nothing had started"
    if not saved:
        error = _first_error(ending.reports)
        how = (
            f"not every rank saved and exited: {error or 'too slow for the grace period, or lost'}"
        )
    if ending.request is WorkerRequest.STOP:
        return Verdict(VerdictKind.STOPPED, True, how)
    if ending.eviction is not None:
        return Verdict(VerdictKind.EVICTED, False, f"{ending.eviction}; {how}")
    return Verdict(
        VerdictKind.TIME_LIMIT if ending.is_time_up else VerdictKind.PREEMPTED, False, how
    )


def _within_budget(
    kind: VerdictKind,
    what: str,
    ending: GenerationEnd,
    past: Sequence[PastGeneration],
    retry: RetrySpec,
    error: WorkerError | None = None,
) -> Verdict:
    """Returns a verdict that is final if failures of this kind without progress have used up the
    retry budget."""
    budget = budget_of(kind, retry) or 0
    count = 0 if ending.progress else failures_in_a_row(kind, past)
    if count < budget:
        return Verdict(kind, False, what, error)
    times = f"{count + 1} times without progress" if count else "with no retry left"
    return Verdict(kind, True, f"{what} ({times}; retry.{kind.value}={budget})", error)


def failures_in_a_row(kind: VerdictKind, past: Sequence[PastGeneration]) -> int:
    """Counts the generations of `kind` since the last progress. Generations in between that ended
    otherwise are ignored."""
    count = 0
    for one in reversed(past):
        if one.progress:
            break
        count += one.kind is kind
    return count


def used_retries(events: Sequence[Event], kind: VerdictKind) -> int:
    """Counts the successive failures of `kind` without a new checkpoint from the events of a run,
    as `judge_generation` counted them in the supervisor that started last. Pure."""
    past = past_of(events)
    if not past or past[-1].kind is not kind:
        return failures_in_a_row(kind, past)
    # as in `judge_generation`, the last failure counts even after progress in its generation
    return 1 + (0 if past[-1].progress else failures_in_a_row(kind, past[:-1]))


def _first_error(reports: Sequence[ExitReport]) -> WorkerError | None:
    errors = [report.error for report in reports if report.error]
    return min(errors, key=order_of, default=None)
