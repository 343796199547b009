"""Shares of a step: complete, even, next to one another in streams; the tails of an epoch."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.order.mixed.mixed_order import MixedOrder
from data.order.mixture import Mixture, segment
from data.order.mixture_blocks import MIX_ORDERS
from data.order.rank_shares import (
    Tail,
    Uneven,
    mixed_streams_of_rank,
    share,
    step_at,
    streams_of_ranks,
    take,
)
from data.order.sample_order import MAX_POSITION, Order
from data.read.batches.batch_plan import SamplePlan, Topology
from data.read.sample_stream import MixedStream, SingleStream
from tests.effort import times

SIZES = st.integers(1, 200)
WORLDS = st.integers(1, 40)


@settings(max_examples=times(75), deadline=None)
@given(
    first=st.integers(0, 10_000),
    size=SIZES,
    world=WORLDS,
    streams=st.integers(1, 30),
    uneven=st.sampled_from(["ragged", "pad"]),
    tail=st.sampled_from(["straddle", "pad"]),
)
def test_the_shares_are_the_step(
    first: int, size: int, world: int, streams: int, uneven: Uneven, tail: Tail
) -> None:
    order = Order([50, 81], streams=streams)
    step = step_at(first, size, order.samples, tail)
    shares = [share(first, size, r, world, order, uneven=uneven, tail=tail) for r in range(world)]
    real = [p for s in shares for p in s.positions[s.mask].tolist()]
    assert sorted(real) == step.positions[step.mask].tolist()
    lengths = {s.positions.size for s in shares}
    assert max(lengths) - min(lengths) <= (uneven == "ragged")
    assert {s.after for s in shares} == {step.after}
    in_order = [int(v) for s in shares for v in order.stream_of(s.positions[s.mask])]
    if tail == "straddle":
        assert in_order == sorted(in_order)
    losses = {p: float(p % 17) for p in step.positions.tolist()}
    means = [np.mean([losses[p] for p in s.positions[s.mask].tolist()] or [0.0]) for s in shares]
    weighted = np.mean([s.weight * m for s, m in zip(shares, means, strict=True)])
    assert weighted == pytest.approx(np.mean([losses[p] for p in real]))


@settings(max_examples=times(50), deadline=None)
@given(
    samples=st.integers(1, 60),
    size=st.integers(1, 40),
    world=st.integers(1, 12),
    epochs=st.integers(1, 3),
    begin=st.integers(0, 200),
    tail=st.sampled_from(["straddle", "drop", "pad"]),
    uneven=st.sampled_from(["error", "ragged", "pad"]),
)
@example(samples=100, size=8, world=8, epochs=1, begin=0, tail="straddle", uneven="ragged")
def test_every_rank_ends_after_the_same_step(
    samples: int, size: int, world: int, epochs: int, begin: int, tail: Tail, uneven: Uneven
) -> None:
    """Also one whose share of the last step lies past the end: the others meet it in a collective.

    Each step is what `share` says, and together they hold what the epochs have left.
    """
    size = size * world if uneven == "error" else size
    if tail == "drop" and size > samples:
        return
    order = Order([samples], streams=5)
    stream = SingleStream(_NoDataset(), order)  # type: ignore[arg-type]
    every = [
        list(SamplePlan(stream, Topology(size, rank, world, uneven, tail, epochs)).work(begin))
        for rank in range(world)
    ]
    assert len({len(works) for works in every}) == 1
    position, seen = begin, []
    for works in zip(*every, strict=True):
        for rank, work in enumerate(works):
            told = share(position, size, rank, world, order, uneven=uneven, tail=tail)
            assert work.share.positions.tolist() == told.positions.tolist()
            assert work.share.mask.tolist() == told.mask.tolist()
            assert (work.share.weight, work.share.after) == (told.weight, told.after)
            assert work.places.samples.tolist() == order.locate(told.positions)[1].tolist()
            seen += told.positions[told.mask].tolist()
        position = works[0].share.after
    assert sorted(seen) == sorted(set(seen))
    if tail != "drop":
        assert set(range(begin, epochs * samples)) <= set(seen)
        assert len(seen) < max(0, epochs * samples - begin) + size


@settings(max_examples=times(12), deadline=None)
@given(
    weights=st.lists(st.sampled_from([0, 1, 2]), min_size=2, max_size=4).filter(any),
    later=st.integers(1, 4000),
    each=st.integers(1, 40),
    world=st.integers(1, 16),
    begin=st.integers(0, 3000),
    order=st.sampled_from(MIX_ORDERS),
    is_ragged=st.booleans(),
)
def test_the_batches_of_a_mixture_are_its_shares(
    weights: list[int], later: int, each: int, world: int, begin: int, order: str, is_ragged: bool
) -> None:
    """Also where the weights change in the middle of what is located together."""
    size = each * world - (is_ragged and each > 1)
    uneven: Uneven = "ragged" if is_ragged else "error"
    orders = [Order([300, 250 + n], seed=n, streams=5) for n in range(len(weights))]
    segments = [segment(0, weights), segment(later, weights[::-1])]
    stream = MixedStream([], orders, Mixture(segments, block=64, order=order))
    for rank in {world // 2, world - 1}:
        plan = SamplePlan(stream, Topology(size, rank, world, uneven, "straddle", None))
        position = begin
        for work in islice(plan.work(begin), 24):
            told = share(position, size, rank, world, stream, uneven=uneven)
            assert work.share.positions.tolist() == told.positions.tolist()
            assert (work.share.weight, work.share.after) == (told.weight, told.after)
            found = [column.tolist() for column in work.places]
            assert found == [column.tolist() for column in stream.locate(told.positions)]
            position = told.after


@pytest.mark.parametrize("datasets", [1, 2])
def test_a_stream_ends_after_the_last_position(datasets: int) -> None:
    orders = [Order([300, 250], seed=n, streams=5) for n in range(datasets)]
    mixture = Mixture([segment(0, [1] * datasets)])
    alone = SingleStream(_NoDataset(), orders[0])  # type: ignore[arg-type]
    stream = alone if datasets == 1 else MixedStream([], orders, mixture)
    plan = SamplePlan(stream, Topology(64, 0, 4, "error", "straddle", None))
    afters = [work.share.after for work in plan.work(MAX_POSITION - 3 * 64)]
    assert afters == [MAX_POSITION - 128, MAX_POSITION - 64, MAX_POSITION]


class _NoDataset:
    """Stands for one where only the order counts."""


def test_uneven_shares_are_an_error_unless_asked_for() -> None:
    order = Order([10])
    with pytest.raises(ValueError, match="cannot be shared evenly"):
        share(0, 8, 0, 3, order)
    assert [share(0, 8, r, 3, order, uneven="ragged").positions.size for r in range(3)] == [2, 3, 3]
    assert share(0, 2, 0, 4, order, uneven="ragged").positions.size == 0


@settings(max_examples=times(50), deadline=None)
@given(
    samples=st.integers(1, 100),
    tail=st.sampled_from(["straddle", "drop", "pad"]),
    sizes=st.lists(SIZES, min_size=1, max_size=20),
)
def test_tails(samples: int, tail: Tail, sizes: list[int]) -> None:
    """Steps follow one another; each epoch is whole, but for what `drop` drops."""
    position = 0
    seen: list[int] = []
    for size in sizes:
        if tail == "drop" and size > samples:
            with pytest.raises(ValueError, match="drop every sample"):
                step_at(samples - 1 if samples > 1 else 0, size, samples, tail)
            continue
        step = step_at(position, size, samples, tail)
        assert step.positions.size == size
        real = step.positions[step.mask]
        epochs = set((step.positions // samples).tolist())
        assert tail == "straddle" or len(epochs) == 1
        if tail == "drop":
            assert real[0] - position < size
            assert step.mask.all()
        else:
            assert real[0] == position
        assert step.after == real[-1] + 1
        seen += real.tolist()
        position = step.after
    assert seen == sorted(set(seen))
    if tail != "drop":
        assert seen == list(range(position))


@settings(max_examples=times(50), deadline=None)
@given(
    size=SIZES,
    world=WORLDS,
    streams=st.integers(1, 60),
    nodes=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    step=st.integers(0, 500),
)
def test_a_node_reads_the_streams_it_was_told(
    size: int, world: int, streams: int, nodes: tuple[float, float], step: int
) -> None:
    order = Order([100_000], streams=streams)
    low, high = sorted(int(x * world) for x in nodes)
    low, high = min(low, world - 1), max(high, low + 1)
    told = streams_of_ranks(low, min(high, world), world, size, streams)
    for number in range(step, step + 5):
        if number * size // order.samples != ((number + 1) * size - 1) // order.samples:
            continue
        for rank in range(low, min(high, world)):
            part = share(number * size, size, rank, world, order, uneven="ragged")
            assert set(order.stream_of(part.positions).tolist()) <= set(told)


@settings(max_examples=15, deadline=None)
@given(
    size=st.integers(64, 1024),
    world=st.integers(1, 16),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    streams=st.lists(st.integers(1, 60), min_size=4, max_size=4),
    step=st.integers(0, 200),
)
def test_hardly_a_position_of_a_mixture_lies_outside_the_streams_that_were_told(
    size: int, world: int, weights: list[int], streams: list[int], step: int
) -> None:
    """In the middle one of some steps: in one alone chance may put more there."""
    orders = [Order([100_000], streams=count) for count in streams[: len(weights)]]
    mixture = MixedOrder(orders, Mixture([segment(0, weights)]))
    shares = [weight / sum(weights) for weight in weights]
    counts = [order.streams for order in orders]
    inside = np.zeros(21)
    for rank in range(world):
        told = mixed_streams_of_rank(rank, world, size, shares, counts)
        for number in range(len(inside)):
            first = (step + number) * size
            part = share(first, size, rank, world, mixture, uneven="ragged")
            datasets, own = mixture.mixture.locate(part.positions)
            for which, order in enumerate(orders):
                found = order.stream_of(own[datasets == which])
                inside[number] += np.isin(found, list(told[which])).sum()
    assert np.median(inside) >= 0.95 * size


def test_ranks_share_the_streams_of_a_mixture() -> None:
    told = [mixed_streams_of_rank(rank, 8, 8192, [0.7, 0.3, 0.0], [48] * 3) for rank in range(8)]
    assert [len(found[0]) for found in told] == [8, 10, 10, 10, 10, 10, 10, 8]
    assert told[3][:2] == [range(16, 26), range(16, 26)]
    assert all(found[2] == range(0) for found in told)


def test_nodes_share_the_streams_evenly_if_they_divide_the_batch() -> None:
    parts = [streams_of_ranks(8 * node, 8 * node + 8, 128, 960, 48) for node in range(16)]
    assert parts == [range(3 * node, 3 * node + 3) for node in range(16)]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: share(0, 8, 2, 2, Order([9])), "rank"),
        (lambda: share(0, 8, 0, 0, Order([9])), "rank"),
        (lambda: share(0, 8, 0, 2, Order([9]), uneven="no"), "uneven"),  # type: ignore[arg-type]
        (lambda: step_at(0, 8, 9, "no"), "tail"),  # type: ignore[arg-type]
        (lambda: step_at(-1, 8, 9), "no step"),
        (lambda: step_at(0, 0, 9), "no step"),
        (lambda: step_at(MAX_POSITION, 1, 9), "no step"),
        (lambda: streams_of_ranks(2, 2, 4, 8, 8), "no streams"),
        (lambda: streams_of_ranks(0, 5, 4, 8, 8), "no streams"),
    ],
)
def test_impossible_arguments_are_refused(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


@given(
    st.lists(
        st.integers(0, 3) | st.integers(0, 2**20) | st.integers(2**32 - 2, 2**32 - 1),
        min_size=1,
        max_size=50,
    )
)
def test_entries_are_sorted_by_stream_and_then_by_position(streams: list[int]) -> None:
    wanted = sorted(range(len(streams)), key=lambda entry: streams[entry])
    both = np.array([streams, streams[::-1]])
    taken = [take(both, rank, 2, "ragged")[0] for rank in range(2)]
    assert np.concatenate(taken, axis=1)[0].tolist() == wanted
