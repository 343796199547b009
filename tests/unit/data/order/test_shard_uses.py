"""What is used next: no later than it really is, in order, and good enough to evict by."""

from collections import OrderedDict
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order.grown_order import DatasetVersion, GrownOrder
from data.order.sample_order import Order
from data.order.shard_uses import NEVER, ShardUse, shards_ahead, uses_ahead
from tests.effort import times


@st.composite
def orders(draw: st.DrawFn) -> Order:
    return Order(
        draw(st.lists(st.integers(0, 40), min_size=1, max_size=25).filter(any)),
        seed=draw(st.integers(0, 99)),
        streams=draw(st.integers(1, 40)),
        window=draw(st.integers(1, 9)),
        shuffle=draw(st.booleans()),
    )


@settings(max_examples=times(40), deadline=None)
@given(orders(), st.floats(0, 2), st.data())
def test_uses_tell_of_every_read_and_shards_ahead_of_the_first(
    order: Order, epochs: float, data: st.DataObject
) -> None:
    position = int(epochs * order.samples)
    subset = data.draw(st.none() | st.sets(st.integers(0, order.streams - 1)))
    positions = np.arange(position, (position // order.samples + 2) * order.samples)
    if subset is not None:
        positions = positions[np.isin(order.stream_of(positions), list(subset))]
    shards, _ = order.locate(positions)
    end = int(positions[-1]) if positions.size else 0
    uses = list(takewhile(lambda use: use.first <= end, uses_ahead(order, position, subset)))
    assert [use.first for use in uses] == sorted(use.first for use in uses)
    assert all(use.first >= position for use in uses)
    spans: dict[int, list[ShardUse]] = {}
    for use in uses:
        spans.setdefault(use.shard, []).append(use)
    for at, shard in zip(positions.tolist(), shards.tolist(), strict=True):
        assert any(use.first <= at <= use.last for use in spans[shard])
    ahead = list(shards_ahead(order, position, subset))
    assert [first for first, _ in ahead] == sorted(first for first, _ in ahead)
    assert sorted(shard for _, shard in ahead) == sorted(set(shards.tolist()))
    for first, shard in ahead:
        assert first == min(use.first for use in spans[shard])


@settings(max_examples=times(20), deadline=None)
@given(orders())
def test_at_the_beginning_a_use_is_at_its_windows_first_position(order: Order) -> None:
    """Some shard of the window is read right there: the bound is not empty talk."""
    n = order.samples
    uses = list(takewhile(lambda use: use.first < 2 * n, uses_ahead(order, n)))
    for first in {use.first for use in uses}:
        shard = int(order.locate(first)[0])
        assert shard in {use.shard for use in uses if use.first == first}


def test_streams_that_there_are_not_are_refused() -> None:
    with pytest.raises(ValueError, match="streams must be"):
        next(uses_ahead(Order([9], streams=3), 0, {3}))
    with pytest.raises(ValueError, match="positions"):
        next(uses_ahead(Order([9]), -1))


def test_a_plan_of_a_great_dataset_begins_at_once() -> None:
    order = Order(np.full(100_000, 1000), seed=1)
    first, shard = next(shards_ahead(order, 90_000_000, range(6)))
    assert first >= 90_000_000
    assert 0 <= shard < 100_000


def hit_rates(order: Order, room: int, epochs: int) -> tuple[float, float]:
    """(next-use, LRU) hits per use after the first epoch, by one node that reads everything."""
    uses = list(takewhile(lambda use: use.first < epochs * order.samples, uses_ahead(order, 0)))
    following = np.full(len(uses), NEVER)
    last: dict[int, int] = {}
    for number in range(len(uses) - 1, -1, -1):
        following[number] = last.get(uses[number].shard, NEVER)
        last[uses[number].shard] = uses[number].first
    best: dict[int, tuple[int, int]] = {}  # shard -> (next use, end of this one)
    recent: OrderedDict[int, None] = OrderedDict()
    hits = [0, 0]
    counted = 0
    for use, after in zip(uses, following.tolist(), strict=True):
        late = use.first >= order.samples
        counted += late
        hits[0] += late and use.shard in best
        hits[1] += late and use.shard in recent
        best[use.shard] = (after, use.last)
        if len(best) > room:  # a shard in use is as near as can be
            del best[max(best, key=lambda s: best[s][0] if best[s][1] < use.first else -1)]
        recent[use.shard] = None
        recent.move_to_end(use.shard)
        if len(recent) > room:
            recent.popitem(last=False)
    return hits[0] / counted, hits[1] / counted


def test_evicting_by_next_use_hits_what_the_disk_holds_and_lru_does_not() -> None:
    order = Order([200] * 480, seed=2, streams=8, window=4)
    by_next_use, by_lru = hit_rates(order, room=240, epochs=5)
    assert by_next_use >= 0.48
    assert by_lru < 0.25


def uses_ahead_to(order: Order, begin: int, end: int) -> list[ShardUse]:
    return list(takewhile(lambda use: use.first < end, uses_ahead(order, begin)))


def test_uses_of_a_grown_dataset_are_those_of_its_versions() -> None:
    """Each use tells of all reads of its shard, in the positions of the whole order."""
    counts = [7, 5, 9, 6]
    versions = [DatasetVersion(0, 0, 3, "a"), DatasetVersion(42, 2, 4, "b")]
    order = GrownOrder(Order(counts, seed=2, streams=3, window=2), versions)
    for begin in (0, 30, 42, 60):
        positions = np.arange(begin, 42 + 2 * 27)
        shards, _ = order.locate(positions)
        uses = uses_ahead_to(order, begin, 42 + 2 * 27)
        covered = {
            (position, use.shard)
            for use in uses
            for position in range(use.first, min(use.last, int(positions[-1])) + 1)
        }
        read = set(zip(positions.tolist(), shards.tolist(), strict=True))
        assert read <= covered
        assert [use.first for use in uses] == sorted(use.first for use in uses)
        end = order.epoch_begin(order.epoch_of(begin) + 2)
        soon = dict.fromkeys(use.shard for use in uses_ahead_to(order, begin, end))
        assert [shard for _, shard in shards_ahead(order, begin)] == list(soon)
    assert [order.epoch_of(p) for p in (0, 20, 21, 41, 42, 68, 69)] == [0, 0, 1, 1, 2, 2, 3]
    assert [order.epoch_begin(e) for e in range(4)] == [0, 21, 42, 69]
