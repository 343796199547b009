"""What stragglers cost: the slow node with its phase, and none where ranks differ by chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.events.step_phases import PARTS, Part
from hpckit.trainer.timing.straggler_cost import (
    CHANCE,
    WINDOW,
    RankPlace,
    RankTime,
    WhatIf,
    at_least,
    what_if,
)

Noise = Callable[[random.Random], float]
NOISES: dict[str, Noise] = {
    "a percent": lambda rng: rng.gauss(0, 0.01),
    "five percent": lambda rng: rng.gauss(0, 0.05),
    "a fifth": lambda rng: max(-0.9, rng.gauss(0, 0.2)),
    "skewed": lambda rng: rng.lognormvariate(0, 0.3) - 1,
    "heavy tails": lambda rng: rng.paretovariate(1.2) if rng.random() < 0.1 else rng.random() / 99,
}


def alone(ranks: int, per_node: int = 1) -> list[RankPlace]:
    return [RankPlace(rank // per_node, 0) for rank in range(ranks)]


def rank_time(own_s: float, step_s: float, late: Part = "forward", late_s: float = 0.0) -> RankTime:
    """A tenth waits for data, and the rest computes; ranks wait for others in the backward pass."""
    phases = dict.fromkeys(PARTS, 0.0) | {"data_wait": 0.1, "forward": 0.3}
    phases[late] += late_s
    phases["backward"] = step_s - sum(phases.values())
    return RankTime(step_s, own_s, phases)


def window(
    seed: int, ranks: int, noise: Noise, slow: dict[int, float], late: Part = "forward"
) -> list[list[RankTime]]:
    rng, steps = random.Random(seed), []
    for _ in range(WINDOW):
        late_s = [slow.get(rank, 0.0) for rank in range(ranks)]
        own = [1.0 + noise(rng) + late_s[rank] for rank in range(ranks)]
        step_s = max(own) + 0.1
        pairs = zip(own, late_s, strict=True)
        steps.append([rank_time(one, step_s, late, more) for one, more in pairs])
    return steps


def found(steps: Sequence[Sequence[RankTime]], places: Sequence[RankPlace]) -> WhatIf:
    result = what_if(steps, places)
    assert result is not None
    return result


@given(
    seed=st.integers(0, 2**32), ranks=st.integers(3, 12), noise=st.sampled_from(sorted(NOISES)),
)  # fmt: skip
def test_a_slow_rank_is_named_with_its_cost(seed: int, ranks: int, noise: str) -> None:
    rank = seed % ranks
    slow = window(seed, ranks, NOISES["a percent"], {rank: 1.0})
    it = found(slow, alone(ranks))
    assert [one.rank for one in it.slow] == [rank]
    assert it.share == pytest.approx(1.0 / 2.1, abs=0.03)
    assert it.spread >= it.share - 1e-9
    other = found(window(seed, ranks, NOISES[noise], {}), alone(ranks))
    assert 0 <= other.share <= other.spread + 1e-9


def test_ranks_that_differ_by_chance_are_no_stragglers() -> None:
    """At most one window in 1,000 may name a rank, whatever the noise."""
    alarms = windows = 0
    for noise in NOISES.values():
        for ranks in (3, 4, 8):
            for _ in range(20):
                windows += 1
                steps = window(windows, ranks, noise, {})
                alarms += bool(found(steps, alone(ranks)).slow)
    assert at_least(3, windows, CHANCE) < 0.004
    assert alarms < 3


@pytest.mark.parametrize(
    ("late", "named"),
    [
        *((part, part) for part in ("data_wait", "host_to_device", "optimizer", "other")),
        *((part, "compute") for part in ("forward", "backward")),
        ("checkpoint_stall", "checkpoint_stall"),
    ],
)
def test_the_slow_phase(late: Part, named: Part) -> None:
    steps = window(1, 4, NOISES["a percent"], {2: 0.2}, late)
    if late == "forward":  # as with FSDP, where all ranks wait for gathered parameters there
        steps = [[rank_time(one.own_s, one.step_s) for one in step] for step in steps]
    assert [one.phase for one in found(steps, alone(4)).slow] == [named]


def test_code_without_step_phases_has_no_slow_phase() -> None:
    steps = [
        [RankTime(one.step_s, one.own_s, dict.fromkeys(PARTS, 0.0)) for one in step]
        for step in window(1, 4, NOISES["a percent"], {2: 0.2})
    ]
    assert [one.phase for one in found(steps, alone(4)).slow] == ["other"]


@pytest.mark.parametrize(
    ("slow", "noise", "nodes"),
    [(0.05, "a percent", [3]), (0.05, "five percent", []), (0.2, "five percent", [3])],
)
def test_a_small_slowdown_is_found_only_above_the_noise(
    slow: float, noise: str, nodes: list[int]
) -> None:
    it = found(window(7, 8, NOISES[noise], {3: slow}), alone(8))
    assert [one.node for one in it.slow] == nodes


def test_slow_nodes_are_found_together_though_each_alone_costs_nothing() -> None:
    it = found(window(1, 16, NOISES["a percent"], {5: 0.5, 9: 0.5}), alone(16))
    assert {one.node for one in it.slow} == {5, 9}
    assert it.share == pytest.approx(0.5 / 1.6, abs=0.03)


def test_all_ranks_of_a_node_may_be_slow() -> None:
    steps = window(1, 32, NOISES["a percent"], dict.fromkeys(range(8, 12), 0.3))
    (one,) = found(steps, alone(32, per_node=4)).slow
    assert one.node == 2
    assert one.rank in range(8, 12)
    assert found(steps, alone(32, per_node=4)).share == pytest.approx(0.3 / 1.4, abs=0.03)


def test_ranks_of_one_node_are_compared_with_each_other() -> None:
    it = found(window(1, 8, NOISES["a percent"], {5: 0.5}, "data_wait"), alone(8, per_node=8))
    assert [(one.node, one.rank, one.phase) for one in it.slow] == [(0, 5, "data_wait")]
    assert it.share == pytest.approx(0.5 / 1.6, abs=0.03)


def test_stages_are_compared_with_themselves() -> None:
    """The second stage works longer than the first, and a slow rank of the first costs nothing as
    long as it does not work longer than the second."""
    steps = []
    for seed in range(WINDOW):
        rng = random.Random(seed)
        own = [1 + rng.random() / 99 + (0.3 if r == 1 else 0) for r in range(4)]
        own += [2 + rng.random() / 99 for _ in range(4)]
        steps.append([rank_time(one, max(own) + 0.1) for one in own])
    it = found(steps, [RankPlace(rank, rank // 4) for rank in range(8)])
    assert it.slow == ()
    assert it.share == 0


def test_a_straggler_that_is_another_rank_each_time_is_none() -> None:
    steps = []
    for number in range(WINDOW):
        steps += window(number, 4, NOISES["a percent"], {number % 4: 0.5})[:1]
    it = found(steps, alone(4))
    assert it.slow == ()
    assert it.spread == pytest.approx(0.5 / 1.6, abs=0.03)


def test_waiting_of_all_is_the_collectives_own() -> None:
    assert found(window(1, 4, NOISES["a percent"], {}), alone(4)).collectives == pytest.approx(
        0.1 / 1.12, abs=0.01
    )


def test_equal_times_and_unknown_ones_are_no_stragglers() -> None:
    same = [[rank_time(1.0, 1.0) for _ in range(4)] for _ in range(WINDOW)]
    assert found(same, alone(4)).slow == ()
    assert what_if(window(1, 2, NOISES["a percent"], {0: 1.0}), alone(2)) is None
    lost = float("nan")
    steps = [[*step[:1], RankTime(lost, lost, step[1].phases), *step[2:]] for step in same]
    assert found(steps, alone(4)).slow == ()
    assert what_if([], alone(4)) is None
