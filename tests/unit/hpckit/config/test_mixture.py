"""Mixtures of a spec: what is refused, and the weights by position that follow from it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order.mixture import Mixture, MixtureSegment, segment
from hpckit.config.mixture import (
    PlannedStage,
    SourceSize,
    change_problems,
    end_position,
    shares,
    source_plans,
    stages,
    stages_from,
)
from hpckit.config.run_identity import differences, identity, with_identity_mixture
from hpckit.config.spec import MixtureSourceSpec, MixtureSpec, MixtureStageSpec, RunSpec
from hpckit.config.spec_parser import SpecError, parse_spec, spec_values
from hpckit.submit.compose import amend_spec
from hpckit.submit.resume_overrides import _extended
from tests.effort import times
from tests.unit.hpckit.specs_and_processes import make_spec, make_values

WEB, CODE = {"shards": "/data/web"}, {"shards": "/data/code"}
TWO = {"web": {**WEB, "weight": 3.0}, "code": {**CODE, "weight": 1.0}}
BUDGETS = {"web": {**WEB, "budget": 900}, "code": {**CODE, "budget": 100}}
SIZES = [SourceSize(1000, 5000), SourceSize(100, 2000)]


def spec_of(**changes: Any) -> RunSpec:
    given_ = {f"data.mixture.{key}": value for key, value in changes.items()}
    return make_spec({"data.mixture.sources": TWO, **given_}, data="mixture")


def with_mixture(spec: RunSpec, **changes: Any) -> RunSpec:
    assert spec.data.mixture is not None
    return replace(spec, data=replace(spec.data, mixture=replace(spec.data.mixture, **changes)))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"data.mixture.sources": {}}, "data.mixture.sources: is empty"),
        ({"data.shards": "/x"}, "data.shards: must be null with data.mixture"),
        ({"data.mixture": None}, "data.shards: is required, or data.mixture"),
        (
            {"data.mixture.sources": {**TWO, "code": CODE}},
            "data.mixture.sources.code: has neither a weight nor a budget",
        ),
        (
            {"data.mixture.sources": {**TWO, "code": {**CODE, "weight": 1.0, "budget": 5}}},
            "data.mixture.sources.code: has both a weight and a budget",
        ),
        (
            {"data.mixture.sources": {**TWO, "code": {**CODE, "budget": 5}}},
            "data.mixture.sources.web.weight: code has a budget",
        ),
        (
            {"data.mixture.sources": {**TWO, "code": {**CODE, "weight": 0.0}}},
            "data.mixture.sources.code.weight: must be more than 0, as no stage gives it more",
        ),
        (
            {"data.mixture.sources": {**TWO, "code": {**CODE, "weight": -1.0}}},
            "data.mixture.sources.code.weight: must be greater than or equal to 0, got -1.0",
        ),
        (
            {"data.mixture.sources": {**TWO, "code": {**WEB, "weight": 1.0}}},
            "data.mixture.sources.code.shards: are those of web",
        ),
        ({"data.mixture.sources": {"a b": TWO["web"]}}, "data.mixture.sources.a b"),
        (
            {"data.mixture.sources": {"web": {**TWO["web"], "wieght": 1.0}}},
            "wieght: unknown key; did you mean data.mixture.sources.web.weight?",
        ),
        (
            {"data.mixture.stages": [{"step": 5, "weights": {"cod": 1.0}}]},
            "data.mixture.stages[0].weights.cod: there is no such source; did you mean code?",
        ),
        (
            {"data.mixture.stages": [{"weights": {"code": 1.0}}]},
            "data.mixture.stages[0]: has neither step nor tokens",
        ),
        (
            {"data.mixture.stages": [{"step": 5, "weights": {"code": 0.0}}]},
            "data.mixture.stages[0].weights: all are 0",
        ),
        (
            {
                "data.mixture.stages": [
                    {"step": 5, "weights": {"code": 1.0}},
                    {"step": 5, "weights": {"web": 1.0}},
                ]
            },
            "must begin one after the other; 5 is not after",
        ),
        (
            {
                "data.mixture.stages": [
                    {"step": 5, "weights": {"code": 1.0}},
                    {"tokens": 99, "weights": {"web": 1.0}},
                ]
            },
            "some begin at steps and some at tokens",
        ),
        (
            {
                "data.mixture.sources": BUDGETS,
                "data.mixture.stages": [{"step": 5, "weights": {"code": 1.0}}],
            },
            "data.mixture.stages: a curriculum changes weights",
        ),
        (
            {"data.text": "bytes", "data.mixture.unit": "tokens"},
            "data.mixture.unit: samples of bytes have no tokens",
        ),
        (
            {
                "data.text": "bytes",
                "data.mixture.stages": [{"tokens": 5, "weights": {"code": 1.0}}],
            },
            "data.mixture.stages: samples of bytes have no tokens",
        ),
        (
            {"data.mixture.sources": {**TWO, "code": {**TWO["code"], "end_of_text": 10**6}}},
            "data.mixture.sources.code.end_of_text: 1000000 is not a token",
        ),
        (
            {
                "data.mixture.sources": {
                    **TWO,
                    "code": {**CODE, "weight": 1.0, "shards": "s3://key:secret@host/code"},
                }
            },
            "data.mixture.sources.code.shards: contains a password",
        ),
    ],
)
def test_an_impossible_mixture_is_refused_by_its_key(changes: dict[str, Any], text: str) -> None:
    values = make_values({"data.mixture.sources": TWO}, data="mixture")
    for key, value in changes.items():
        *parents, last = key.split(".")
        where = values
        for parent in parents:
            where = where[parent]
        where[last] = value
    with pytest.raises(SpecError) as caught:
        parse_spec(values)
    assert any(text in line for line in caught.value.violations), caught.value.violations


def test_weights_by_tokens_become_weights_by_samples() -> None:
    by_samples = stages(spec_of(unit="samples"), SIZES)
    assert by_samples == [PlannedStage(0, (Fraction(3), Fraction(1)))]
    by_tokens = stages(spec_of(unit="tokens"), SIZES)
    assert by_tokens == [PlannedStage(0, (Fraction(3, 5), Fraction(1, 20)))]
    with pytest.raises(ValueError, match=r"sources.code.shards: has no token counts"):
        stages(spec_of(unit="tokens"), [SIZES[0], SourceSize(100, None)])


@settings(max_examples=times(50), deadline=None)
@given(
    weights=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(any), min_size=1, max_size=4
    ),
    gaps=st.lists(st.integers(50, 2000), min_size=3, max_size=3),
    sizes=st.tuples(st.integers(1, 500), st.integers(1, 90), st.integers(1, 500)),
)
def test_a_stage_by_tokens_begins_where_plain_counting_begins_it(
    weights: list[tuple[int, int]], gaps: list[int], sizes: tuple[int, int, int]
) -> None:
    """The oracle adds up the tokens of one sample after the other, at their mean."""
    known = [SourceSize(100, 100 * sizes[0]), SourceSize(10 * sizes[1], 10 * sizes[2])]
    first, *later = weights
    plan = [
        MixtureStageSpec(tokens=sum(gaps[: n + 1]) * 1000, weights={"web": a, "code": b})
        for n, (a, b) in enumerate(later)
    ]
    sources = {
        "web": MixtureSourceSpec(shards="/w", weight=float(first[0])),
        "code": MixtureSourceSpec(shards="/c", weight=float(first[1])),
    }
    spec = with_mixture(SPEC, sources=sources, stages=tuple(plan), unit="samples")
    found = stages(spec, known)
    position, tokens = 0, Fraction(0)
    means = [size.mean_tokens for size in known]
    for number, stage in enumerate(plan):
        a, b = weights[number]
        rate = (a * means[0] + b * means[1]) / (a + b)
        while tokens < (stage.tokens or 0):
            more = max(1, int((stage.tokens or 0) - tokens) // int(rate + 1))
            position, tokens = position + more, tokens + more * rate
        assert found[number + 1].position == position
    assert [stage.weights for stage in found] == [(Fraction(a), Fraction(b)) for a, b in weights]


SPEC = spec_of(unit="samples")


@settings(max_examples=times(40), deadline=None)
@given(
    lives=st.lists(
        st.tuples(
            st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(any),
            st.lists(st.integers(50, 2000), max_size=3),
            st.integers(0, 900),
        ),
        min_size=2,
        max_size=4,
    ),
)
def test_after_other_weights_a_stage_begins_where_plain_counting_begins_it(
    lives: list[tuple[tuple[int, int], list[int], int]],
) -> None:
    """Each life of the run has its weights and stages by tokens, and ends some samples later; the
    oracle adds up the tokens of one sample after the other, at their mean. Resumed once more with
    the same weights, the stages begin at the same positions."""
    known = [SourceSize(100, 70_000), SourceSize(100, 20_000)]
    before, position, tokens = list[MixtureSegment](), 0, Fraction(0)
    for number, (first, gaps, taken) in enumerate(lives):
        plan = [
            MixtureStageSpec(tokens=sum(gaps[: n + 1]) * 1000, weights={"web": n, "code": 1})
            for n in range(len(gaps))
        ]
        spec = life_of(first, plan)
        found = [
            segment(*stage)
            for stage in (
                stages_from(spec, known, before, position) if number else stages(spec, known)
            )
        ]
        due = [segment(0, first), *(segment(0, (n, 1)) for n in range(len(gaps)))]
        before = [*(part for part in before if part.position < position), *found]
        for sample in range(position, position + taken):
            passed = sum((stage.tokens or 0) <= tokens for stage in plan)
            (now,) = [part for part in before if part.position <= sample][-1:]
            if number:  # of the first life, weights are exact, and not rounded to 1e-9
                assert now.parts == due[passed].parts
            rates = (part * size.mean_tokens for part, size in zip(now.parts, known, strict=True))
            tokens += sum(rates, Fraction(0)) / 10**9
        position += taken
    later = [segment(*stage) for stage in stages_from(spec, known, before, position)]
    kept = [part for part in before if part.position > position]
    assert later[1:] == kept
    assert later[0].parts == [part for part in before if part.position <= position][-1].parts


def life_of(weights: tuple[int, int], plan: list[MixtureStageSpec]) -> RunSpec:
    sources = {
        "web": MixtureSourceSpec(shards="/w", weight=float(weights[0])),
        "code": MixtureSourceSpec(shards="/c", weight=float(weights[1])),
    }
    return with_mixture(SPEC, sources=sources, stages=tuple(plan), unit="samples")


def test_a_stage_by_steps_of_samples_begins_at_their_position() -> None:
    stage = MixtureStageSpec(step=7, weights={"code": 1.0})
    spec = with_mixture(SPEC, stages=(stage,))
    spec = replace(spec, data=replace(spec.data, text="bytes"))
    assert [each.position for each in stages(spec, SIZES)] == [0, 7 * spec.train.global_batch]
    assert end_position(spec, stages(spec, SIZES), SIZES) == (
        spec.train.steps * spec.train.global_batch
    )


def problems_of(steps: int, block: int = 10, **sources: dict[str, Any]) -> list[str]:
    made = {name: MixtureSourceSpec(**{**TWO[name], **of}) for name, of in sources.items()}
    spec = with_mixture(SPEC, sources=made, block=block)
    train = replace(spec.train, steps=steps, global_batch=10)
    spec = replace(spec, data=replace(spec.data, text="bytes"), train=train)
    plan = stages(spec, SIZES)
    consumed = shares(plan, end_position(spec, plan, SIZES))
    return source_plans(spec, consumed, SIZES)[1]


def test_budgets_and_epochs_are_compared_with_what_the_run_takes() -> None:
    no_weight = {"weight": None}
    web, code = {**no_weight, "budget": 900}, {**no_weight, "budget": 100}
    assert problems_of(100, web=web, code=code) == []
    (line, other) = problems_of(120, web=web, code=code)
    assert line.startswith("data.mixture.sources.web: 120 steps read it 1.08 times") or (
        "more than 900" in line
    )
    assert "code" in other
    (line,) = problems_of(10, web=web, code={**code, "budget": 101})
    assert "101 samples are more than the 100 that /data/code has" in line
    assert "set data.mixture.sources.code.epochs" in line
    assert problems_of(10, web=web, code={**code, "budget": 101, "epochs": 2.0}) == []
    (line,) = problems_of(100, web={}, code={"epochs": 1.5})
    assert line.startswith("data.mixture.sources.code: 100 steps read it 2.50 times, and it may")


def test_budgets_and_epochs_of_sources_smaller_than_a_block_are_kept() -> None:
    no_weight = {"weight": None}
    web, code = {**no_weight, "budget": 60}, {**no_weight, "budget": 20}
    assert problems_of(8, block=1024, web=web, code=code) == []
    (line, other) = problems_of(16, block=1024, web=web, code=code)
    assert "16 steps take 120 samples, more than 60" in line
    assert "16 steps take 40 samples, more than 20" in other
    (line,) = problems_of(100, block=1024, web={}, code={"epochs": 2.0})
    assert line.startswith("data.mixture.sources.code: 100 steps read it 2.50 times, and it may")


@given(
    st.lists(st.tuples(st.integers(1, 500), st.tuples(*[st.integers(0, 9)] * 2)), min_size=1),
    st.integers(0, 3000),
)
@settings(max_examples=times(20))
def test_shares_are_what_a_mixture_reads_up_to_a_block(
    given_: list[tuple[int, tuple[int, int]]], end: int
) -> None:
    position, plan = 0, list[PlannedStage]()
    for gap, weights in given_:
        if any(weights):
            plan.append(PlannedStage(position, tuple(map(Fraction, weights))))
            position += gap
    if not plan:
        return
    mixture = Mixture([segment(*stage) for stage in plan], block=16)
    read = mixture.consumed(end).tolist()
    found = shares(plan, end)
    assert sum(found) == pytest.approx(end)
    for have, want in zip(found, read, strict=True):
        assert abs(have - want) <= 16 * len(plan)


def mixture_of(**changes: Any) -> MixtureSpec:
    assert SPEC.data.mixture is not None
    return replace(SPEC.data.mixture, **changes)


def test_a_run_continues_with_other_weights_and_more_sources() -> None:
    before = mixture_of()
    more = {
        **before.sources,
        "web": replace(before.sources["web"], weight=0.0),
        "math": MixtureSourceSpec(shards="/m", weight=1.0),
    }
    assert change_problems(before, mixture_of(sources=more)) == []
    (line,) = change_problems(before, mixture_of(sources={"web": before.sources["web"]}))
    assert "sources.code: the run has read it" in line
    assert "weight=0" in line
    other = {**before.sources, "web": replace(before.sources["web"], shards="/other")}
    (line,) = change_problems(before, mixture_of(sources=other))
    assert "sources.web.shards: cannot change from /data/web to /other" in line
    assert change_problems(before, mixture_of(block=7))


def continued(spec: RunSpec, *overrides: str) -> RunSpec:
    """The spec with which `hpckit resume RUN` continues, as `_before_and_after` makes it."""
    return _extended(spec, amend_spec(with_identity_mixture(spec), overrides, None))


def test_a_source_is_paused_at_any_resume_whenever_it_was_added() -> None:
    once = continued(SPEC, "data.mixture.sources.web.weight=0")
    assert once.data.mixture is not None
    assert once.data.mixture.sources["web"].weight == 0
    added = continued(SPEC, "data.mixture.sources.math={shards: /m, weight: 2}")
    twice = continued(added, "data.mixture.sources.math.weight=0")
    assert parse_spec(spec_values(twice)) == twice, "it can be read again"
    assert {identity(each) for each in (SPEC, once, added, twice)} == {identity(SPEC)}
    with pytest.raises(SpecError, match="all weights are 0"):
        continued(twice, *(f"data.mixture.sources.{name}.weight=0" for name in ("web", "code")))


def test_a_run_whose_mixture_stays_keeps_what_identifies_it() -> None:
    assert continued(SPEC, "retry.crash=7").data.identity_mixture is None
    changed = continued(SPEC, "data.mixture.sources.web.weight=2")
    again = continued(changed, "retry.crash=7")
    assert again.data.identity_mixture == changed.data.identity_mixture is not None
    group = amend_spec(changed, ["data=stdlib"], None)
    assert group.data.identity_mixture == changed.data.identity_mixture


def test_a_run_keeps_its_identity_with_another_mixture_at_resume_alone() -> None:
    after = with_mixture(SPEC, stages=(MixtureStageSpec(step=3, weights={"code": 1.0}),))
    assert identity(after) != identity(SPEC)
    resumed = _extended(SPEC, after)
    assert differences(SPEC, resumed) == []
    again = _extended(resumed, with_mixture(resumed, stages=()))
    assert identity(again) == identity(SPEC)
