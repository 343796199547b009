"""Mixing: exact shares, own positions without a gap, weights changeable at any position."""

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order.mixed.mixed_order import MixedOrder
from data.order.mixed.sorted_slots import BlockRange
from data.order.mixture import Mixture, MixtureSegment, segment
from data.order.mixture_blocks import MIX_ORDERS, PARTS
from data.order.rank_shares import share
from data.order.sample_order import Order
from data.order.virtual_streams import distinct
from tests.effort import times
from tests.unit.data.order import order_reference as reference

WEIGHTS = st.lists(st.sampled_from([0.0, 0.2, 0.5, 1, 2]), min_size=1, max_size=5).filter(any)


@settings(max_examples=times(40), deadline=None)
@given(
    changes=st.lists(st.tuples(WEIGHTS, st.integers(1, 300)), min_size=1, max_size=5),
    seed=st.integers(0, 2**64 - 1),
    block=st.integers(45, 130),
    order=st.sampled_from(MIX_ORDERS),
)
def test_own_positions_go_on_without_a_gap_over_changes_of_weights(
    changes: list[tuple[list[float], int]], seed: int, block: int, order: str
) -> None:
    mixture = Mixture([segment(0, changes[0][0])], seed=seed, block=block, order=order)
    position = 0
    seen: list[tuple[int, int]] = []
    for weights, length in changes:
        mixture = mixture.then(position, weights)  # a resume: the same past, other weights
        located = mixture.locate(np.arange(position, position + length))
        seen += zip(*(column.tolist() for column in located), strict=True)
        position += length
        counts = np.bincount([d for d, _ in seen], minlength=mixture.datasets)
        assert mixture.consumed(position).tolist() == counts.tolist()
        mine = np.bincount(located[0], minlength=len(weights))
        for count, weight in zip(mine, weights, strict=False):
            assert abs(count - length * weight / sum(weights)) <= block
    for dataset in range(mixture.datasets):
        own = [at for d, at in seen if d == dataset]
        assert own == list(range(len(own)))
    whole = mixture.locate(np.arange(position))
    assert list(zip(*(column.tolist() for column in whole), strict=True)) == seen


@settings(max_examples=times(30), deadline=None)
@given(weights=WEIGHTS, blocks=st.integers(0, 10**12), block=st.integers(45, 2000))
def test_shares_are_exact_after_any_number_of_blocks(
    weights: list[float], blocks: int, block: int
) -> None:
    part = segment(0, weights)
    consumed = Mixture([part], block=block).consumed(blocks * block)
    assert consumed.sum() == blocks * block
    for count, share_of in zip(consumed.tolist(), part.parts, strict=True):
        assert abs(count * PARTS - blocks * block * share_of) < PARTS


@settings(max_examples=times(20), deadline=None)
@given(
    weights=WEIGHTS,
    seed=st.integers(0, 2**64 - 1),
    block=st.integers(45, 90),
    first=st.sampled_from([0, 62]),
    order=st.sampled_from(MIX_ORDERS),
)
def test_the_document_says_what_is_done(
    weights: list[float], seed: int, block: int, first: int, order: str
) -> None:
    part = segment(0, weights)
    mixture = Mixture([part], seed=seed, block=block, order=order)
    expected = reference.mixture(part.parts, seed, block, first + 4, order=order)
    datasets, _ = mixture.locate(np.arange(first * block, (first + 4) * block))
    assert datasets.tolist() == expected[first * block :]


@settings(max_examples=times(30), deadline=None)
@given(data=st.data())
def test_positions_are_the_same_however_they_are_looked_for(data: st.DataObject) -> None:
    """Alone, in a range that is kept, and far from each other, over changes of weights."""
    draw = data.draw
    weights, later = draw(WEIGHTS), draw(WEIGHTS)
    options = {"seed": draw(st.integers(0, 99)), "block": draw(st.integers(45, 1100))}
    segments = [segment(0, weights), segment(draw(st.integers(1, 9000)), later)]
    orders = [
        Order([draw(st.integers(1, 400))], seed=number, streams=draw(st.integers(1, 50)))
        for number in range(max(len(weights), len(later)))
    ]
    order = draw(st.sampled_from(MIX_ORDERS))
    mixed = MixedOrder(orders, Mixture(segments, order=order, **options))
    first, count = draw(st.integers(0, 10**5)), draw(st.integers(1, 40_000))
    near = np.arange(first, first + count)
    probes = near[:: max(1, count // 7)]
    again = MixedOrder(orders, Mixture(segments, order=order, **options))
    one_by_one = np.stack([np.stack(again.locate(probe)) for probe in probes], axis=1)
    placed = mixed.placement_of(near)
    assert np.array_equal(_dense(placed), _dense(mixed.stream_of(near)))
    assert np.array_equal(np.stack(mixed.locate(probes)), one_by_one)
    far = np.concatenate([probes, probes + 10**9])
    assert np.array_equal(np.stack(mixed.locate(far))[:, : probes.size], one_by_one)


@settings(max_examples=times(40), deadline=None)
@given(data=st.data())
def test_entries_of_steps_are_those_of_their_sorted_positions(data: st.DataObject) -> None:
    """Whatever the size of a step, where it begins, and how many epochs and blocks it has."""
    draw = data.draw
    weights, streams = draw(WEIGHTS), draw(st.integers(1, 12))
    lengths = st.lists(st.integers(1, 4000), min_size=1, max_size=3)
    orders = [Order(draw(lengths), seed=n, streams=streams) for n in range(len(weights))]
    mixture = Mixture([segment(0, weights)], seed=1, block=draw(st.integers(45, 1100)))
    mixed = MixedOrder(orders, mixture)
    size, steps = draw(st.integers(60, 3000)), draw(st.integers(1, 9))
    first, begin = draw(st.integers(0, 10**7)), draw(st.integers(0, size - 1))
    entries = range(begin, min(size, begin + draw(st.integers(1, size // 4))))
    found = mixed.entries_of(first, size, steps, entries)
    if found is None:  # then they are sorted, as epochs are short
        assert min(order.samples for order in orders) < size
        return
    _check_entries(mixed, first, size, steps, entries)


def test_entries_are_found_among_many_datasets() -> None:
    orders = [Order([999 + n], seed=n, streams=12) for n in range(200)]
    mixed = MixedOrder(orders, Mixture([segment(0, [1] * 200)]))
    _check_entries(mixed, 10**9 + 7, 2**12, 3, range(500, 600))


@pytest.mark.parametrize("block", [64, 1000, 2**15 + 1])
def test_entries_are_found_where_no_block_is_cut_by_a_step(block: int) -> None:
    orders = [Order([3001 + n, 7 * block], seed=n, streams=12) for n in range(3)]
    mixed = MixedOrder(orders, Mixture([segment(0, [1, 2, 3])], block=block))
    for entries in (range(3, 30), range(2 * block - 30, 2 * block)):
        _check_entries(mixed, 6 * block, 2 * block, 5, entries)


@pytest.mark.parametrize(("block", "weights"), [(1, [1]), (2, [1, 1]), (7, [2, 3]), (48, [1, 5])])
def test_entries_are_found_in_small_blocks(block: int, weights: list[int]) -> None:
    orders = [Order([3001 + n, 999], seed=n, streams=40) for n in range(len(weights))]
    mixed = MixedOrder(orders, Mixture([segment(0, weights)], block=block))
    for first in (10**6, 3 * block * 400):
        _check_entries(mixed, first, 400, 9, range(101, 155))
    assert mixed.entries_of(0, 400, 9, range(101, 101)) is None


def test_entries_in_small_blocks_take_little_memory() -> None:
    mixed = MixedOrder([Order([10**7], streams=256)], Mixture([segment(0, [1])], block=4))
    tracemalloc.start()
    try:
        assert mixed.entries_of(10**9, 1024, 256, range(512, 640)) is not None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * 256 * 1024, "100 bytes for each position"


@pytest.mark.parametrize(("block", "kind"), [(4, np.uint32), (2**31, np.uint64)])
def test_slots_of_some_blocks_are_sorted_by_block_and_dataset(
    block: int, kind: type[np.generic]
) -> None:
    slots = np.array([[3, 0, 2, 1], [1, 0, 3, 2], [2, 3, 1, 0]], dtype=np.uint32)
    before = np.cumsum([[5, 5, 5], [1, 0, 3], [2, 1, 1], [0, 2, 2]], axis=0)
    blocks = BlockRange(0, 4, before, slots.__getitem__)
    bits = (block - 1).bit_length()
    keys = blocks._keys(np.array([0, 2]), np.array([[1, 0, 3], [0, 2, 2]]), bits)
    assert keys.dtype == kind
    datasets = [[0, 2, 2, 2], [4, 4, 5, 5]]  # the number of the block * 3 more
    of = sorted(zip(np.ravel(datasets).tolist(), slots[[0, 2]].ravel().tolist(), strict=True))
    assert [divmod(key, 2**bits) for key in keys.tolist()] == of
    found = blocks.sorted(np.array([0, 2]))
    assert found.slots(np.array([0, 2]), np.array([2, 1]), np.array([1, 0])).tolist() == [1, 2]
    assert found.counts_before(np.array([2]), np.array([3])).tolist() == [[0, 1, 2]]


def _check_entries(mixed: MixedOrder, first: int, size: int, steps: int, entries: range) -> None:
    found = mixed.entries_of(first, size, steps, entries)
    assert found is not None
    positions = np.arange(first, first + size * steps).reshape(steps, size)
    by_stream = np.argsort(mixed.stream_of(positions), axis=1, kind="stable")
    wanted = np.take_along_axis(positions, by_stream, axis=1)[:, entries.start : entries.stop]
    assert np.array_equal(found.positions, wanted)
    assert np.array_equal([found.datasets, found.own], mixed.mixture.locate(wanted))


def _dense(numbers: npt.NDArray[np.integer]) -> list[int]:
    """The place of each number among the different ones."""
    found: list[int] = np.unique(numbers, return_inverse=True)[1].tolist()
    return found


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of"):
        Mixture([segment(0, [1])], order="mix-3")


def test_streams_that_are_too_many_to_be_placed_in_16_bits_are_sorted_by_all_bits() -> None:
    orders = [Order([99], streams=2**16), Order([99], streams=2**16 - 1)]
    mixed = MixedOrder(orders, Mixture([segment(0, [1, 1])]))
    positions = np.arange(100)
    assert mixed.placement_of(positions).tolist() == mixed.stream_of(positions).tolist()


@given(st.lists(st.integers(0, 30) | st.integers(0, 2**62), min_size=1, max_size=40))
def test_different_numbers_are_found_as_by_sorting(numbers: list[int]) -> None:
    different, which = distinct(np.array(numbers, dtype=np.int64))
    assert different.tolist() == sorted(set(numbers))
    assert different[which].tolist() == numbers


def test_weights_become_exact_parts() -> None:
    assert segment(0, [0.7, 0.3]).parts == (700_000_000, 300_000_000)
    assert segment(0, [1, 1, 1]).parts == (333_333_334, 333_333_333, 333_333_333)
    assert segment(5, [0, 2]) == MixtureSegment(5, (0, PARTS))


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.float64])
def test_weights_may_be_numbers_of_numpy(kind: type[np.generic]) -> None:
    weights = [3 * 2**40, 2**60, 5 * 2**50]
    numpy = segment(0, np.array(weights).astype(kind))  # type: ignore[arg-type]
    assert numpy == segment(0, weights)
    assert all(type(part) is int for part in numpy.parts)


def test_blocks_are_shuffled() -> None:
    datasets, _ = Mixture([segment(0, [1, 1])], block=64).locate(np.arange(128))
    first, second = datasets[:64].tolist(), datasets[64:].tolist()
    assert sorted(first) == sorted(second)
    assert first != second != sorted(second)


@pytest.mark.parametrize("order", MIX_ORDERS)
def test_a_rare_dataset_comes_anywhere_in_a_block_whatever_the_blocks_before(order: str) -> None:
    """Blocks of mix-2 share permutations: places, and distances to those before, by chi-square."""
    block, blocks = 256, 4096
    mixture = Mixture([segment(0, [block - 1, 1])], block=block, order=order)
    slots = np.flatnonzero(mixture.locate(np.arange(block * blocks))[0]) % block
    assert slots.size == blocks
    for found in (slots, np.diff(slots) % block, (slots[2:] - slots[:-2]) % block):
        expected = found.size / block
        chi_square = float(((np.bincount(found, minlength=block) - expected) ** 2).sum() / expected)
        assert abs(chi_square - (block - 1)) < 4 * math.sqrt(2 * (block - 1))


@pytest.mark.parametrize("order", MIX_ORDERS)
def test_successive_positions_have_as_many_of_a_dataset_as_by_chance(order: str) -> None:
    """The variance is that of the hypergeometric distribution."""
    block, blocks, size = 256, 4096, 32
    mixture = Mixture([segment(0, [1, 3])], block=block, order=order)
    counts = mixture.locate(np.arange(block * blocks))[0].reshape(-1, size).sum(axis=1)
    assert counts.mean() == size * 0.75
    expected = size * 0.25 * 0.75 * (block - size) / (block - 1)
    assert counts.var() == pytest.approx(expected, rel=0.05)


def test_mixed_orders_read_every_dataset_by_its_own_order() -> None:
    orders = [Order([5, 7], seed=1, streams=3), Order([40], seed=2, streams=4)]
    mixed = MixedOrder(orders, Mixture([segment(0, [1, 3])], block=16))
    datasets, shards, samples = mixed.locate(np.arange(48))
    assert np.bincount(datasets).tolist() == [12, 36]
    read = set(zip(shards[datasets == 0].tolist(), samples[datasets == 0].tolist(), strict=True))
    assert len(read) == 12
    shares = [share(0, 48, rank, 4, mixed) for rank in range(4)]
    assert sorted(p for s in shares for p in s.positions.tolist()) == list(range(48))
    last = mixed.mixture.locate(shares[3].positions)
    assert set(orders[1].stream_of(last[1][last[0] == 1]).tolist()) <= {2, 3}
    with pytest.raises(ValueError, match="2 datasets are mixed, 1"):
        MixedOrder(orders[:1], mixed.mixture)


@pytest.mark.parametrize("tiny", [4e-10, 9.99e-10, 5e-324])
def test_a_weight_is_never_rounded_to_0(tiny: float) -> None:
    with pytest.raises(ValueError, match="less than a share of 1e-09"):
        segment(0, [1, tiny])
    assert segment(0, [1, 1.001e-9]).parts[1] == 1
    with pytest.raises(ValueError, match=r"a weight of 2e-10 among \[1\.0, 2e-10\] is less"):
        segment(0, [Fraction(1), Fraction(1, 5 * 10**9)])
    assert segment(0, [1, 0]).parts[1] == 0


@pytest.mark.parametrize("weights", [[], [0.0], [1, -1], [math.nan], [math.inf, 1]])
def test_wrong_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be"):
        segment(0, weights)


@pytest.mark.parametrize(
    ("segments", "block", "text"),
    [
        ([], 64, "begin at 0"),
        ([segment(1, [1])], 64, "begin at 0"),
        ([segment(0, [1]), segment(0, [1])], 64, "rising"),
        ([MixtureSegment(0, (1, 2))], 64, "sum to"),
        ([segment(0, [1, 99])], 64, "at least 100"),
        ([segment(0, [1])], 0, "block must be"),
    ],
)
def test_impossible_mixtures_are_refused(
    segments: list[MixtureSegment], block: int, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Mixture(segments, block=block)
