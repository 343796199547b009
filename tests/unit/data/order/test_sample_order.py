"""The order: every sample once per epoch, whoever reads it, and frozen."""

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order.rank_shares import share
from data.order.sample_order import MAX_POSITION, ORDER, Order
from data.order.virtual_streams import find_ranges, stream_cuts
from tests.effort import times
from tests.unit.data.order import order_reference as reference

SEEDS = st.integers(0, 2**64 - 1)
COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(any)
STREAMS = st.integers(1, 70)
WINDOWS = st.integers(1, 12)


def samples_at(order: Order, positions: range) -> list[tuple[int, int]]:
    shards, samples = order.locate(np.array(positions, dtype=np.int64))
    return list(zip(shards.tolist(), samples.tolist(), strict=True))


def natural(counts: list[int]) -> list[tuple[int, int]]:
    return [(shard, sample) for shard, count in enumerate(counts) for sample in range(count)]


@settings(max_examples=times(75), deadline=None)
@given(COUNTS, SEEDS, STREAMS, WINDOWS, st.integers(0, 3), st.integers(0, 10**6))
def test_each_epoch_has_every_sample_once(
    counts: list[int], seed: int, streams: int, window: int, remix: int, epoch: int
) -> None:
    order = Order(counts, seed=seed, streams=streams, window=window, remix_every=remix)
    n = order.samples
    every = range(epoch * n, (epoch + 1) * n)
    found = samples_at(order, every)
    assert sorted(found) == natural(counts)
    assert order.positions_in(epoch, *np.array(found).T).tolist() == [*every]


@settings(max_examples=times(25), deadline=None)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(any),
    streams=STREAMS,
    window=WINDOWS,
    changes=st.lists(
        st.tuples(st.integers(5, 97), st.integers(1, 33), st.integers(0, 8)), min_size=1
    ),
)
def test_the_stream_is_the_same_under_any_changes_of_batch_world_and_workers(
    counts: list[int], streams: int, window: int, changes: list[tuple[int, int, int]]
) -> None:
    """Two epochs, each step in another topology, resumed from (identity, position) alone."""
    order = Order(counts, seed=5, streams=streams, window=window)
    n, position, step = order.samples, 0, 0
    delivered: list[tuple[int, int]] = []
    while position < 2 * n:
        batch, world, workers = changes[step % len(changes)]
        order = Order(counts, seed=5, streams=streams, window=window)
        shares = [share(position, batch, r, world, order, uneven="ragged") for r in range(world)]
        pieces = [s.positions for s in shares]
        if workers:  # each reads every so-manieth of its rank's positions
            pieces = [part[w::workers] for part in pieces for w in range(workers)]
        read = np.concatenate(pieces)
        found = dict(zip(read.tolist(), zip(*order.locate(read), strict=True), strict=True))
        delivered += [found[p] for p in range(position, position + batch)]
        assert read.size == batch
        position, step = position + batch, step + 1
    assert delivered == samples_at(
        Order(counts, seed=5, streams=streams, window=window), range(position)
    )
    for epoch in range(2):
        assert sorted(delivered[epoch * n : (epoch + 1) * n]) == natural(counts)


@settings(max_examples=times(30), deadline=None)
@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any),
    seed=SEEDS,
    streams=st.integers(1, 20),
    window=st.integers(1, 5),
    epoch=st.integers(0, 9),
    remix=st.integers(0, 3),
)
def test_the_document_says_what_is_done(
    counts: list[int], seed: int, streams: int, window: int, epoch: int, remix: int
) -> None:
    order = Order(counts, seed=seed, streams=streams, window=window, remix_every=remix)
    n = order.samples
    expected = reference.epoch_order(counts, seed, streams, window, epoch, remix)
    assert samples_at(order, range(epoch * n, (epoch + 1) * n)) == expected


@settings(max_examples=times(30), deadline=None)
@given(COUNTS, STREAMS, WINDOWS, st.integers(0, 5000), st.integers(1, 60))
def test_a_vector_equals_its_scalars(
    counts: list[int], streams: int, window: int, first: int, size: int
) -> None:
    order = Order(counts, streams=streams, window=window)
    positions = range(first, first + size)
    assert samples_at(order, positions) == [
        samples_at(order, range(p, p + 1))[0] for p in positions
    ]


@settings(max_examples=times(30), deadline=None)
@given(COUNTS, SEEDS, STREAMS, WINDOWS)
def test_a_stream_holds_the_same_samples_in_every_epoch_and_few_shards_at_a_time(
    counts: list[int], seed: int, streams: int, window: int
) -> None:
    order = Order(counts, seed=seed, streams=streams, window=window)
    n = order.samples
    held: list[dict[int, list[tuple[int, int]]]] = []
    for epoch in range(2):
        positions = np.arange(epoch * n, (epoch + 1) * n)
        per_stream: dict[int, list[tuple[int, int]]] = {}
        for v, sample in zip(
            order.stream_of(positions),
            samples_at(order, range(epoch * n, (epoch + 1) * n)),
            strict=True,
        ):
            per_stream.setdefault(int(v), []).append(sample)
        held.append(per_stream)
        for samples in per_stream.values():
            shards = [shard for shard, _ in samples]
            live = [
                len({s for s in shards[: i + 1] if s in shards[i:]}) for i in range(len(shards))
            ]
            assert max(live) <= window
    sizes = np.diff(stream_cuts(n, streams))
    assert {v: len(s) for v, s in held[0].items()} == {v: k for v, k in enumerate(sizes) if k}
    assert {v: set(s) for v, s in held[0].items()} == {v: set(s) for v, s in held[1].items()}


def test_epochs_and_seeds_differ_and_remixing_moves_samples_between_streams() -> None:
    counts = [20] * 50
    order = Order(counts, seed=3)
    first = samples_at(order, range(1000))
    assert first != samples_at(order, range(1000, 2000))
    assert first != samples_at(Order(counts, seed=4), range(1000))
    assert first != natural(counts)
    remixed = Order(counts, seed=3, remix_every=2)
    whole = [
        {
            s
            for s, v in zip(samples_at(remixed, r), remixed.stream_of(list(r)), strict=True)
            if not v
        }
        for r in (range(1000), range(1000, 2000), range(2000, 3000))
    ]
    assert whole[0] == whole[1] != whole[2]


def test_an_epoch_of_fewer_samples_than_streams_is_shuffled_too() -> None:
    order = Order([20])
    epochs = [tuple(samples_at(order, range(20 * e, 20 * e + 20))) for e in range(4)]
    assert len(set(epochs)) == 4


def test_without_a_shuffle_samples_come_as_they_lie() -> None:
    counts = [3, 0, 5, 1]
    order = Order(counts, shuffle=False)
    assert samples_at(order, range(18)) == natural(counts) * 2
    assert set(order.stream_of(range(18)).tolist()) == {0}


def test_the_state_is_small() -> None:
    state = {**Order([5], seed=2**64 - 1, streams=2**16, window=999).identity}
    state |= {"fingerprint": "f" * 64, "position": 10**13}
    assert state["order"] == ORDER
    assert len(json.dumps(state)) < 200


def test_shapes_are_kept_and_far_positions_work() -> None:
    order = Order([4, 3], streams=2)
    shards, samples = order.locate(np.arange(6).reshape(2, 3))
    assert shards.shape == samples.shape == order.stream_of(np.zeros((2, 3), int)).shape == (2, 3)
    assert order.locate(np.array([], dtype=np.int64))[0].shape == (0,)
    assert order.locate(MAX_POSITION)[0].shape == ()
    copied = pickle.loads(pickle.dumps(order))
    assert samples_at(copied, range(20)) == samples_at(order, range(20))


def test_many_threads_may_read_far_apart_epochs() -> None:
    order, alone = Order([30] * 9, streams=5), Order([30] * 9, streams=5)
    places = [range(270 * e + e, 270 * e + 100) for e in (0, 5, 1, 7, 0, 3, 2, 9)] * 20
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(partial(samples_at, order), places))
    assert found == [samples_at(alone, place) for place in places]


COLD = """
import numpy as np
from data.order.sample_order import Order
order = Order(np.full(10**6, 1000), seed=1)
shards, samples = order.locate(np.arange(9 * 10**8, 9 * 10**8 + 1024))
print(len(set(shards.tolist())))
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def test_a_plan_of_a_million_shards_stays_small() -> None:
    """The peak of a fresh process that goes on at nine tenths of 10**9 samples: 105 MB."""
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=True)
    shards, peak_kb = map(int, done.stdout.split())
    assert 300 < shards <= 48 * 8
    assert peak_kb < 200_000


@pytest.mark.parametrize(
    ("counts", "options", "text"),
    [
        ([], {}, "needs 1"),
        ([0, 0], {}, "needs 1"),
        ([2**53, 1], {}, "needs 1"),
        ([3, -1], {}, "shard 1"),
        ([[3]], {}, "one integer"),
        ([1.5], {}, "one integer"),
        ([3], {"seed": -1}, "seed"),
        ([3], {"streams": 0}, "streams"),
        ([3], {"streams": 2**17}, "streams"),
        ([3], {"window": 0}, "window"),
        ([3], {"remix_every": -1}, "remix_every"),
    ],
)
def test_impossible_arguments_are_refused(
    counts: list[int], options: dict[str, int], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Order(counts, **options)  # type: ignore[arg-type]


@given(
    sizes=st.lists(st.integers(1, 50) | st.integers(1, 10**12), min_size=1, max_size=60),
    count=st.sampled_from([1, 40, 400]),
    seed=st.integers(0, 2**32 - 1),
)
def test_ranges_are_found_as_by_bisection(sizes: list[int], count: int, seed: int) -> None:
    cuts = np.cumsum([0, *sizes])
    numbers = np.random.default_rng(seed).integers(0, cuts[-1], count)
    numbers[: min(count, len(sizes))] = cuts[: min(count, len(sizes))]
    expected = np.searchsorted(cuts, numbers, side="right") - 1
    assert find_ranges(cuts, numbers).tolist() == expected.tolist()


def test_wrong_positions_are_refused() -> None:
    order = Order([3])
    for positions in ([-1], [MAX_POSITION + 1]):
        with pytest.raises(ValueError, match="positions"):
            order.locate(positions)
    with pytest.raises(TypeError, match="integers"):
        order.stream_of([0.5])
