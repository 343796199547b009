"""Which checkpoints are evaluated, and when: as a table, and as properties of any history."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.evaluation.evaluation_plan import (
    EvaluationLimits,
    EvaluationPlan,
    known_evaluations,
    plan_evaluations,
)
from hpckit.events.schema import Event
from hpckit.report.evaluation.evaluation_records import (
    EvaluationRecord,
    build_evaluations,
    evaluated_commits,
)
from tests.unit.hpckit.evaluation.evaluation_events import (
    begun,
    committed,
    done,
    failed,
    id_of,
    skipped,
    submitted,
)


def evaluation(step: int, word: str) -> EvaluationRecord:
    """What a word says of a step: `s` is submitted, then it fails (`f`), is done (`d`) or was left
    out (`x`); a letter after the other."""
    events: list[Event] = []
    own: list[Event] = []
    for number, letter in enumerate(word):
        job = str(100 * step + number)
        match letter:
            case "s":
                events.append(submitted(step, job))
            case "f":
                own += [begun(step, str(100 * step + number - 1)), failed(step)]
            case "d":
                own += [begun(step, str(100 * step + number - 1)), done(step)]
            case "x":
                events.append(skipped(step))
    found = build_evaluations(events, {id_of(step): own} if own else {})
    return found[0] if found else EvaluationRecord(step, id_of(step))


def steps(plan: EvaluationPlan) -> tuple[list[int], list[int]]:
    return [one.step for one in plan.submit], [one.step for one, _ in plan.skip]


@pytest.mark.parametrize(
    ("words", "backlog", "lost", "is_last", "submit", "skip"),
    [
        (("sd", "", ""), "each", (), False, [2, 3], []),
        (("sd", "", ""), "newest", (), False, [2, 3], []),
        (("s", "", ""), "each", (), False, [2], []),
        (("s", "", ""), "newest", (), False, [3], [2]),
        (("s", "s", "", ""), "each", (), False, [], []),
        (("s", "s", "", ""), "newest", (), False, [], []),  # a newer one may come meanwhile
        (("s", "s", "", ""), "each", (), True, [3, 4], []),
        (("s", "s", "", "", ""), "newest", (), True, [4, 5], [3]),
        (("sf", ""), "each", (), False, [1, 2], []),
        (("sf", "", ""), "newest", (), False, [2, 3], []),  # it keeps its turn for later
        (("sfs", ""), "each", (), False, [2], []),
        (("sfsf", ""), "each", (), False, [2], [1]),
        (("sfsd", ""), "each", (), False, [2], []),
        (("s", ""), "each", (1,), False, [1, 2], []),
        (("sfs", ""), "each", (1,), False, [2], [1]),
        (("x", ""), "each", (), True, [2], []),
        (("sfsfx", ""), "each", (), True, [2], []),
    ],
)
def test_what_is_submitted_now_and_what_is_left_out(
    words: Sequence[str],
    backlog: str,
    lost: Sequence[int],
    is_last: bool,
    submit: list[int],
    skip: list[int],
) -> None:
    """Two may be pending, and each is submitted twice at most."""
    limits = EvaluationLimits(2, 1, backlog)  # type: ignore[arg-type]
    evaluations = [evaluation(step, word) for step, word in enumerate(words, 1)]
    plan = plan_evaluations(evaluations, limits, {id_of(one) for one in lost}, is_last=is_last)
    assert steps(plan) == (submit, skip)


def test_what_retention_has_removed_is_left_out_unless_it_is_done_or_pending() -> None:
    evaluations = [evaluation(step, word) for step, word in enumerate(("", "sf", "s", "sd", ""), 1)]
    removed = {id_of(step) for step in (1, 2, 3, 4)}
    plan = plan_evaluations(evaluations, EvaluationLimits(4, 1), removed=removed)
    assert steps(plan) == ([5], [1, 2])
    assert all(why == "retention has removed the checkpoint" for _, why in plan.skip)


def test_the_chosen_checkpoints_are_those_at_multiples_and_the_last_one() -> None:
    events = [committed(step) for step in (5, 10, 15, 20, 23)]
    again = committed(10, "01234567")  # after a rollback: other weights at the same step
    chosen = evaluated_commits([*events, again, committed(0)], 10, 23)
    assert [one.id for one in chosen] == [again.id, id_of(20), id_of(23)]
    (first, *_) = known_evaluations(chosen, [evaluation(10, "sd"), evaluation(20, "s")])
    assert (first.id, first.submitted) == (again.id, ())


WORDS = st.sampled_from(["", "s", "sd", "sf", "sfs", "sfsd", "sfsf", "sfsfx", "x"])


@given(
    st.lists(WORDS, max_size=8),
    st.builds(EvaluationLimits, st.integers(1, 4), st.integers(0, 3), st.sampled_from(["each"])),
    st.booleans(),
)
def test_nothing_is_submitted_beyond_the_limits_and_nothing_is_forgotten(
    words: list[str], limits: EvaluationLimits, is_last: bool
) -> None:
    """Whatever ends is followed by others until each checkpoint is done or given up."""
    evaluations = [evaluation(step, word) for step, word in enumerate(words, 1)]
    over: dict[int, str] = {}
    for _ in range(100):
        plan = plan_evaluations(evaluations, limits, is_last=is_last)
        running = [one for one in evaluations if one.submitted and not one.has_failed_last]
        running = [one for one in running if one.success is None and one.skipped is None]
        assert is_last or len(running) + len(plan.submit) <= max(limits.max_pending, len(running))
        assert all(len(one.submitted) <= limits.retries for one in plan.submit)
        assert not {one.id for one in plan.submit} & {one.id for one, _ in plan.skip}
        over |= {one.step: "given up" for one, _ in plan.skip}
        ending = {one.id for one in (*plan.submit, *running)}
        if not ending and not plan.skip:
            break
        evaluations = [
            evaluation(one.step, "sd")
            if one.id in ending
            else evaluation(one.step, "x")
            if one.step in over
            else one
            for one in evaluations
        ]
    assert all(one.success is not None or one.skipped is not None for one in evaluations)


@given(st.lists(WORDS, max_size=8), st.integers(1, 4), st.booleans())
def test_with_newest_no_checkpoint_is_left_out_for_an_older_one(
    words: list[str], most: int, is_last: bool
) -> None:
    evaluations = [evaluation(step, word) for step, word in enumerate(words, 1)]
    plan = plan_evaluations(evaluations, EvaluationLimits(most, 9, "newest"), is_last=is_last)
    submit, skip = steps(plan)
    assert len(submit) <= most
    assert not skip or max(skip) < min(submit)
