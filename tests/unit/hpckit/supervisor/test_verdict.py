"""How a generation ended and what comes next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.agent.exit_report import FAULTY_NODE, HANG, ExitReport, NodeExit, WorkerError
from hpckit.agent.verdict_record import EXIT_STATUS, LEAVES, Verdict, VerdictKind
from hpckit.agent.verdict_record import REFUSED as NOT_STARTED
from hpckit.config.spec import RetrySpec
from hpckit.events.event_log import Event
from hpckit.events.schema import event_of
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.ipc.memory_kinds import MemoryKind
from hpckit.supervisor.verdict import (
    GenerationEnd,
    PastGeneration,
    budget_of,
    failures_in_a_row,
    judge_generation,
    past_of,
    place_of_end,
    repeats_of,
    words_before_first_step,
)

RETRY = RetrySpec(max_restarts=3, crash=2, infra=10, hang=2, oom=1)
NO_RETRY = RetrySpec(max_restarts=0, crash=0, infra=0, hang=0, oom=0)
DONE, LEFT, OVERDUE = NodeExit.DONE, NodeExit.LEFT, NodeExit.OVERDUE
FAILED, REFUSED, STOPPED = NodeExit.FAILED, NodeExit.REFUSED, NodeExit.STOPPED
NONE, PREEMPT, STOP = WorkerRequest.NONE, WorkerRequest.PREEMPT, WorkerRequest.STOP
AGENT, OTHER = "the agent of node 1", "the agent of node 2"


def error(rank: int = 0, time: float = 1.0) -> WorkerError:
    return WorkerError(rank, "ValueError", f"of rank {rank}", "", time)


GPU = WorkerError(1, "OutOfMemoryError", "CUDA out of memory.", "", 1.0, MemoryKind.GPU)
HOST = WorkerError(1, "MemoryError", "", "", 1.0, MemoryKind.HOST)
FAULTY = WorkerError(1, FAULTY_NODE, "rank 1 computed wrong gradients", "", 1.0)
HUNG = WorkerError(1, HANG, "no step was finished after step 5", "", 1.0)


def ending(
    request: WorkerRequest, exits: list[NodeExit], *lost: str, progress: bool = False, **more: Any
) -> GenerationEnd:
    """`is_killed`: the first node's worker was, for want of memory."""
    reports = tuple(
        ExitReport(
            node,
            exit_,
            step=5,
            attempts=0,
            error=more.get("error"),
            is_oom_killed=node == 0 and more.get("is_killed", False),
        )
        for node, exit_ in enumerate(exits)
    )
    return GenerationEnd(request, reports, lost, progress, is_time_up=more.get("is_time_up", False))


# Endings of each kind that is followed by a retry as often as its budget says.
FAILURES = {
    VerdictKind.INFRA: ending(NONE, [], AGENT),
    VerdictKind.CRASH: ending(NONE, [FAILED], error=error()),
    VerdictKind.HANG: ending(NONE, [FAILED, STOPPED], error=HUNG),
    VerdictKind.OOM: ending(NONE, [FAILED], error=GPU),
}
FAILURE = st.sampled_from(sorted(FAILURES))

EXITS = st.lists(st.sampled_from(NodeExit), max_size=4)
ENDINGS = st.builds(
    lambda request, exits, lost, **more: ending(request, exits, *lost, **more),
    st.sampled_from(WorkerRequest),
    EXITS,
    st.lists(st.sampled_from([AGENT, OTHER]), unique=True),
    progress=st.booleans(),
    error=st.sampled_from([None, error(), GPU, HOST, HUNG]),
    is_killed=st.booleans(),
    is_time_up=st.booleans(),
)
PASTS = st.lists(
    st.builds(PastGeneration, st.sampled_from([*LEAVES, *FAILURES]), st.booleans()),
    max_size=12,
)
RETRIES = st.builds(
    RetrySpec,
    max_restarts=st.just(0),
    **dict.fromkeys(("crash", "infra", "hang", "oom"), st.integers(0, 4)),
)


def test_for_good_is_said_in_the_words_of_who_refused() -> None:
    """Another node's error may be of the attempt before."""
    early, late = ending(NONE, [FAILED], error=error(0, 1.0)), ending(NONE, [REFUSED])
    mine = replace(late.reports[0], node=1, error=error(1, 2.0))
    verdict = judge_generation(replace(early, reports=(*early.reports, mine)), [], RETRY)
    assert (verdict.kind, verdict.error) == (VerdictKind.PERMANENT, error(1, 2.0))


def test_a_verdict_names_the_error_of_a_rank_and_not_what_another_one_says_of_it() -> None:
    described = WorkerError(0, "OtherRankError", "rank 1: ValueError: of rank 1", "", 1.0)
    ended = ending(NONE, [FAILED, FAILED], error=described)
    late = replace(ended.reports[1], error=error(1, 2.0))
    verdict = judge_generation(replace(ended, reports=(ended.reports[0], late)), [], RETRY)
    assert verdict.error == error(1, 2.0)


@pytest.mark.parametrize(
    ("end", "kind", "final"),
    [
        (ending(NONE, [DONE, DONE]), VerdictKind.DONE, True),
        (ending(NONE, [FAILED]), VerdictKind.CRASH, False),
        (ending(NONE, [FAILED, STOPPED]), VerdictKind.CRASH, False),
        (ending(NONE, [DONE, FAILED]), VerdictKind.CRASH, False),
        (ending(NONE, [DONE, STOPPED]), VerdictKind.CRASH, False),
        (ending(NONE, [LEFT, LEFT]), VerdictKind.CRASH, False),
        (ending(NONE, [REFUSED, STOPPED]), VerdictKind.PERMANENT, True),
        (ending(NONE, [STOPPED], AGENT), VerdictKind.INFRA, False),
        (ending(NONE, [FAILED], AGENT), VerdictKind.INFRA, False),
        (ending(NONE, [], AGENT), VerdictKind.INFRA, False),
        (replace(ending(NONE, []), absent=("node 1 (n2) (srun: no)",)), VerdictKind.INFRA, False),
        (ending(NONE, [DONE], OTHER), VerdictKind.INFRA, False),
        (ending(NONE, [REFUSED], AGENT), VerdictKind.PERMANENT, True),
        (ending(PREEMPT, [LEFT, LEFT]), VerdictKind.PREEMPTED, False),
        (ending(PREEMPT, [LEFT, OVERDUE]), VerdictKind.PREEMPTED, False),
        (ending(PREEMPT, [FAILED]), VerdictKind.PREEMPTED, False),
        (ending(PREEMPT, [LEFT], AGENT), VerdictKind.PREEMPTED, False),
        (ending(PREEMPT, [DONE, DONE]), VerdictKind.DONE, True),
        (ending(PREEMPT, [DONE, LEFT]), VerdictKind.PREEMPTED, False),
        (ending(PREEMPT, [DONE], AGENT), VerdictKind.PREEMPTED, False),
        (ending(PREEMPT, [REFUSED]), VerdictKind.PERMANENT, True),
        (ending(PREEMPT, [LEFT], is_time_up=True), VerdictKind.TIME_LIMIT, False),
        (ending(PREEMPT, [OVERDUE], is_time_up=True), VerdictKind.TIME_LIMIT, False),
        (ending(PREEMPT, [DONE], is_time_up=True), VerdictKind.DONE, True),
        (ending(PREEMPT, [FAILED], error=GPU), VerdictKind.PREEMPTED, False),
        (ending(NONE, [FAILED], error=HUNG), VerdictKind.HANG, False),
        (ending(NONE, [FAILED, FAILED], error=FAULTY), VerdictKind.INFRA, False),
        (ending(NONE, [STOPPED, FAILED], error=GPU), VerdictKind.OOM, False),
        (ending(NONE, [FAILED], error=HOST), VerdictKind.OOM, False),
        (ending(NONE, [FAILED], is_killed=True), VerdictKind.OOM, False),
        (ending(NONE, [FAILED, FAILED], error=error(1), is_killed=True), VerdictKind.OOM, False),
        (ending(NONE, [FAILED], AGENT, error=GPU), VerdictKind.INFRA, False),
        (ending(NONE, [REFUSED], error=GPU), VerdictKind.PERMANENT, True),
        (ending(STOP, [LEFT]), VerdictKind.STOPPED, True),
        (ending(STOP, [OVERDUE]), VerdictKind.STOPPED, True),
        (ending(STOP, [DONE]), VerdictKind.DONE, True),
        (ending(STOP, [], AGENT), VerdictKind.STOPPED, True),
    ],
)
def test_each_ending_has_its_verdict(end: GenerationEnd, kind: VerdictKind, final: bool) -> None:
    verdict = judge_generation(end, [], RETRY)
    assert (verdict.kind, verdict.final) == (kind, final)
    assert verdict.reason


NOT_LEFT = "not every rank saved and exited"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (ending(PREEMPT, [LEFT, DONE]), "every rank saved and exited"),
        (ending(PREEMPT, [LEFT, OVERDUE]), f"{NOT_LEFT}: too slow for the grace period, or lost"),
        (ending(STOP, [LEFT], AGENT), f"{NOT_LEFT}: too slow for the grace period, or lost"),
        (ending(STOP, [FAILED], error=error(3)), f"{NOT_LEFT}: rank 3: ValueError: of rank 3"),
        (ending(NONE, [STOPPED], OTHER, AGENT), f"lost {OTHER}, {AGENT}"),
        (ending(NONE, [FAILED], error=error(3)), "rank 3: ValueError: of rank 3"),
        (ending(NONE, [REFUSED], error=error(3)), "rank 3: ValueError: of rank 3"),
        (ending(NONE, [FAILED]), "workers were killed without reporting an error"),
    ],
)
def test_the_reason_says_what_happened(end: GenerationEnd, reason: str) -> None:
    assert judge_generation(end, [], RETRY).reason == reason


def test_the_earliest_error_of_all_nodes_is_the_cause() -> None:
    reports = tuple(
        ExitReport(n, FAILED, 5, 0, error(rank=n, time=t)) for n, t in enumerate((3.0, 1.0, 2.0))
    )
    verdict = judge_generation(GenerationEnd(NONE, reports, (), False), [], RETRY)
    assert verdict.error == error(rank=1, time=1.0)


def at_start(error: WorkerError | None, **more: Any) -> GenerationEnd:
    """An ending before the first step."""
    report = ExitReport(0, FAILED, step=0, attempts=1, error=error)
    report = replace(report, is_repeated=more.pop("is_repeated", False))
    return replace(ending(NONE, []), reports=(report,), **more)


def test_what_fails_twice_before_the_first_step_in_the_same_words_is_permanent() -> None:
    first = at_start(error())
    words = words_before_first_step(first)
    assert words == error().words
    assert judge_generation(first, [], RETRY).kind is VerdictKind.CRASH
    again = judge_generation(first, [PastGeneration(VerdictKind.CRASH, False, words)], RETRY)
    assert (again.kind, again.final, again.error) == (VerdictKind.PERMANENT, True, error())
    assert again.reason == (
        "rank 0: ValueError: of rank 0 (twice before the first step, with the same message)"
    )
    for from_step in (0, 20):
        end = at_start(error(), is_repeated=True, from_step=from_step)
        assert judge_generation(end, [], RETRY).kind is VerdictKind.PERMANENT


def test_a_worker_that_refuses_a_repeated_error_is_quoted_with_that() -> None:
    cause = replace(error(), is_before_step=True)
    report = ExitReport(0, REFUSED, step=20, attempts=1, error=cause, is_repeated=True)
    end = replace(ending(NONE, []), reports=(report,), from_step=20)
    verdict = judge_generation(end, [], RETRY)
    assert (verdict.kind, verdict.final) == (VerdictKind.PERMANENT, True)
    assert verdict.reason == f"{cause} (twice before the first step, with the same message)"
    once = replace(end, reports=(replace(report, is_repeated=False),))
    assert judge_generation(once, [], RETRY).reason == str(cause)


PASSING = replace(error(), is_passing=True)


@pytest.mark.parametrize(
    "end",
    [
        at_start(PASSING, is_repeated=True),
        at_start(None),
        at_start(replace(error(), type="AcceleratorError"), from_step=20, is_repeated=True),
        at_start(replace(error(), message="something else")),
        replace(at_start(error()), reports=ending(NONE, [FAILED], error=error()).reports),
    ],
    ids=["may pass", "killed", "a GPU that may be another one", "other words", "after a step"],
)
def test_what_may_be_well_next_time_is_tried_again(end: GenerationEnd) -> None:
    past = [PastGeneration(VerdictKind.CRASH, False, words_before_first_step(at_start(error())))]
    assert judge_generation(end, past, RETRY).kind is VerdictKind.CRASH


FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 7, in main\n'
CAUSE = replace(error(), traceback=FRAMES, step=40)


def after_step(repeats: int, attempts: int = 0, **more: Any) -> GenerationEnd:
    """An ending by `CAUSE`, of so many attempts of which the last `repeats` ended so."""
    report = ExitReport(0, FAILED, step=40, attempts=attempts, error=CAUSE, repeats=repeats)
    return replace(ending(NONE, []), reports=(report,), **more)


def past_with(repeats: int) -> list[PastGeneration]:
    place = place_of_end(after_step(1))
    assert place is not None
    return [PastGeneration(VerdictKind.CRASH, False, None, place, repeats)]


@pytest.mark.parametrize(
    ("end", "past", "times"),
    [
        (after_step(3, 2), [], 3),
        (after_step(1), past_with(2), 3),
        (after_step(2, 1), past_with(2), 4),
        (after_step(2, 1), [], 2),
        (after_step(1, 1), past_with(2), 1),
        (after_step(1, progress=True), past_with(2), 1),
        (after_step(1), [*past_with(2), PastGeneration(VerdictKind.INFRA, False)], 1),
    ],
    ids=[
        "in place",
        "over generations",
        "both",
        "only twice",
        "another error between",
        "a checkpoint between",
        "a lost node between",
    ],
)
def test_what_fails_three_times_at_the_same_line_and_step_is_permanent(
    end: GenerationEnd, past: list[PastGeneration], times: int
) -> None:
    assert repeats_of(end, past) == times
    verdict = judge_generation(end, past, RETRY)
    assert (verdict.kind is VerdictKind.PERMANENT) is (times >= 3)
    if times >= 3:
        assert verdict.reason == (
            f"rank 0: ValueError: of rank 0 ({times} times in a row at the same line after step "
            "40, without a new checkpoint; fix it, and type the same launch command)"
        )


def test_a_lost_agent_and_a_request_are_no_repetition() -> None:
    assert judge_generation(after_step(3, 2, lost=(AGENT,)), [], RETRY).kind is VerdictKind.INFRA
    assert place_of_end(after_step(3, 2, lost=(AGENT,))) is None
    assert place_of_end(after_step(3, 2, request=PREEMPT)) is None


def test_memory_and_hangs_have_their_own_kinds_before_the_first_step_too() -> None:
    for cause, kind in ((GPU, VerdictKind.OOM), (HUNG, VerdictKind.HANG)):
        end = at_start(cause, is_repeated=True)
        assert judge_generation(end, [PastGeneration(kind, False, cause.words)], RETRY).kind is kind


def test_the_words_of_an_earlier_job_count_too() -> None:
    def told(words: str | None) -> list[Event]:
        fields = {"generation": 1, "verdict": "crash", "saved_step": 0, "words": words}
        start = event_of(1.0, "generation_started", {"generation": 1, "from_step": 0})
        return [start, event_of(2.0, "generation_ended", fields)]

    assert past_of(told("E: #")) == [PastGeneration(VerdictKind.CRASH, False, "E: #")]
    assert past_of(told(None)) == [PastGeneration(VerdictKind.CRASH, False)]


def test_the_last_verdict_says_which_budget_was_spent() -> None:
    past = [PastGeneration(VerdictKind.CRASH, False)] * 2
    verdict = judge_generation(ending(NONE, [FAILED], error=error()), past, RETRY)
    assert verdict.final
    assert "3 times without progress" in verdict.reason
    assert "retry.crash=2" in verdict.reason
    assert "retry.infra=0" in judge_generation(ending(NONE, [], AGENT), [], NO_RETRY).reason


@given(end=ENDINGS, past=PASTS, retry=RETRIES)
def test_a_preemption_never_ends_a_run(
    end: GenerationEnd, past: list[PastGeneration], retry: RetrySpec
) -> None:
    verdict = judge_generation(end, past, retry)
    if verdict.kind in LEAVES:
        assert not verdict.final
    if end.request is PREEMPT:
        assert verdict.kind in (*LEAVES, VerdictKind.DONE, VerdictKind.PERMANENT)


@given(end=ENDINGS, past=PASTS, retry=RETRIES)
def test_refused_is_always_permanent_and_nothing_else_is(
    end: GenerationEnd, past: list[PastGeneration], retry: RetrySpec
) -> None:
    verdict = judge_generation(end, past, retry)
    refused = any(report.exit is REFUSED for report in end.reports)
    assert (verdict.kind is VerdictKind.PERMANENT) is refused
    assert verdict.final or not refused


@given(end=ENDINGS, past=PASTS, retry=RETRIES)
def test_done_means_that_every_node_is_done(
    end: GenerationEnd, past: list[PastGeneration], retry: RetrySpec
) -> None:
    verdict = judge_generation(end, past, retry)
    all_done = {report.exit for report in end.reports} == {DONE} and not end.lost
    assert (verdict.kind is VerdictKind.DONE) is all_done
    assert (verdict.exit_status == 0) is all_done


@given(
    budget=st.integers(0, 5),
    kind=FAILURE,
    before=PASTS,
    gaps=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    is_time_up=st.booleans(),
)
def test_exactly_budget_and_one_failures_without_progress_end_a_run(
    budget: int, kind: VerdictKind, before: list[PastGeneration], gaps: list[int], is_time_up: bool
) -> None:
    """Whatever came before the last progress, and however often it has to leave in between."""
    retry = replace(NO_RETRY, **{kind.value: budget})
    leaves = ending(PREEMPT, [LEFT], is_time_up=is_time_up)
    past = [*before, PastGeneration(VerdictKind.PREEMPTED, True)]
    for number in range(budget + 1):
        for _ in range(gaps[number]):
            verdict = judge_generation(leaves, past, retry)
            assert not verdict.final
            past.append(PastGeneration(verdict.kind, False))
        verdict = judge_generation(FAILURES[kind], past, retry)
        assert verdict.kind is kind
        assert verdict.final is (number == budget)
        past.append(PastGeneration(verdict.kind, False))


@given(past=PASTS, kind=FAILURE, retry=RETRIES)
def test_a_failure_with_progress_ends_a_run_only_where_nothing_is_retried(
    past: list[PastGeneration], kind: VerdictKind, retry: RetrySpec
) -> None:
    verdict = judge_generation(replace(FAILURES[kind], progress=True), past, retry)
    assert verdict.final is (budget_of(kind, retry) == 0)


@given(kinds=st.lists(st.sampled_from(VerdictKind)), kind=FAILURE)
def test_progress_resets_the_count_and_other_kinds_do_not_add_to_it(
    kinds: list[VerdictKind], kind: VerdictKind
) -> None:
    past = [PastGeneration(one, False) for one in kinds]
    assert failures_in_a_row(kind, past) == kinds.count(kind)
    assert (
        failures_in_a_row(kind, [*past, PastGeneration(kind, True), PastGeneration(kind, False)])
        == 1
    )


def test_each_kind_that_may_be_retried_has_a_key_of_its_own() -> None:
    retry = RetrySpec(max_restarts=9, crash=1, infra=2, hang=3, oom=4)
    budgets = {
        kind: budget for kind in VerdictKind if (budget := budget_of(kind, retry)) is not None
    }
    assert budgets == {
        VerdictKind.CRASH: 1,
        VerdictKind.INFRA: 2,
        VerdictKind.HANG: 3,
        VerdictKind.OOM: 4,
    }
    assert all(
        f"retry.{kind}=0" in judge_generation(end, [], NO_RETRY).reason
        for kind, end in FAILURES.items()
    )


@pytest.mark.parametrize(
    ("end", "helps", "what"),
    [
        (ending(NONE, [FAILED], error=GPU), "train.micro_batch", str(GPU)),
        (ending(NONE, [FAILED], error=HOST), "cluster.slurm.memory", str(HOST)),
        (
            ending(NONE, [FAILED], error=error(1), is_killed=True),
            "cluster.slurm.memory",
            "the kernel killed a worker of node 0",
        ),
    ],
)
def test_a_lack_of_memory_is_told_with_what_helps(
    end: GenerationEnd, helps: str, what: str
) -> None:
    verdict = judge_generation(end, [], RETRY)
    assert helps in verdict.reason
    assert verdict.reason.endswith(what)
    assert (verdict.error is None) is ("kernel" in what), "peers' errors are not the cause"


def test_the_first_of_all_errors_decides() -> None:
    later = replace(GPU, time=2.0)
    reports = (ExitReport(0, FAILED, 5, 0, later), ExitReport(1, FAILED, 5, 0, error(1, 1.0)))
    assert (
        judge_generation(GenerationEnd(NONE, reports, (), False), [], RETRY).kind
        is VerdictKind.CRASH
    )


def test_every_kind_has_an_exit_status_and_only_done_is_success() -> None:
    assert EXIT_STATUS.keys() == set(VerdictKind)
    assert [kind for kind, status in EXIT_STATUS.items() if status == 0] == [VerdictKind.DONE]
    assert Verdict(VerdictKind.STOPPED, True, "").exit_status == 130


def test_nothing_that_ended_looks_like_something_that_was_not_started() -> None:
    assert NOT_STARTED not in EXIT_STATUS.values()
    assert EXIT_STATUS.keys() == set(VerdictKind)


def happened(kind: str, **fields: Any) -> Event:
    return event_of(0.0, kind, fields)


def generation(verdict: str, from_step: int, saved_step: int) -> list[Event]:
    return [
        happened("generation_started", from_step=from_step),
        happened("generation_ended", verdict=verdict, saved_step=saved_step),
    ]


def test_what_was_in_the_jobs_before_counts_until_a_person_starts_the_run_again() -> None:
    first = [
        happened("run_started", job="1"),
        happened("successor_queued", job="2"),
        *generation("infra", 0, 0),
        *generation("preempted", 0, 30),
    ]
    second = [happened("run_started", job="2"), *generation("crash", 30, 30)]
    infra = PastGeneration(VerdictKind.INFRA, False)
    preempted, crash = (
        PastGeneration(VerdictKind.PREEMPTED, True),
        PastGeneration(VerdictKind.CRASH, False),
    )
    assert past_of([*first, *second]) == [infra, preempted, crash]
    again = happened("run_started", job="2")  # requeued
    assert past_of([*first, *second, again]) == [infra, preempted, crash]
    by_hand = [happened("run_started", job="9"), *generation("crash", 30, 30)]
    assert past_of([*first, *second, *by_hand]) == [crash]
    here = happened("run_started", pid=7)
    assert past_of([*first, here]) == past_of([]) == []


def test_too_few_healthy_nodes_are_the_infrastructures_fault() -> None:
    end = GenerationEnd(NONE, (), (), False, ("n1 (disk full)", "n2 (clock)"))
    verdict = judge_generation(end, [], RETRY)
    assert (verdict.kind, verdict.final) == (VerdictKind.INFRA, False)
    assert verdict.reason == "too few healthy nodes: n1 (disk full), n2 (clock)"
    end = GenerationEnd(NONE, (), (AGENT,), False, ("n1 (disk full)",))
    assert judge_generation(end, [], RETRY).reason.endswith(f"n1 (disk full); lost {AGENT}")
    assert judge_generation(end, [PastGeneration(VerdictKind.INFRA, False)] * 10, RETRY).final
    asked = GenerationEnd(PREEMPT, (), (), False, ("n1 (disk full)",))
    assert judge_generation(asked, [], RETRY).kind is VerdictKind.PREEMPTED


def test_all_that_a_generation_lacked_is_told() -> None:
    lacking = replace(ending(NONE, [], AGENT), unhealthy=("n3 (disk)",), absent=("node 1 (no)",))
    assert judge_generation(lacking, [], RETRY).reason == (
        f"too few healthy nodes: n3 (disk); no agent started on node 1 (no); lost {AGENT}"
    )
