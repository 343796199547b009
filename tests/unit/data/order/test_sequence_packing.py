"""Packing: every token once per epoch, from any cursor on, and what attention needs of a pack."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order.document_boundaries import boundaries
from data.order.keyed_permutation import Ints
from data.order.mixed.mixed_order import MixedOrder
from data.order.mixture import Mixture, segment
from data.order.rank_shares import Tail, take
from data.order.sample_order import Order
from data.order.sequence_packing import Long, SequencePacker
from tests.effort import times
from tests.unit.data.order import order_reference as reference


def tokens(positions: Ints) -> Ints:
    return np.asarray(positions * 7919 % 31, dtype=np.int64)


COUNTS = st.lists(st.integers(0, 25), min_size=1, max_size=8).filter(any)


@settings(max_examples=times(40), deadline=None)
@given(
    counts=COUNTS,
    streams=st.integers(1, 9),
    length=st.integers(2, 60),
    block=st.integers(1, 90),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
)
def test_every_token_comes_once_per_epoch_under_any_batch_and_from_any_cursor(
    counts: list[int], streams: int, length: int, block: int, sizes: list[int]
) -> None:
    order = Order([*counts, 2], streams=streams, window=2)
    n = order.samples
    cursor, number = 0, 0
    got = np.zeros(3 * n, dtype=np.int64)
    seen: set[tuple[int, int]] = set()
    while cursor < 2 * -(-n // block) << 24:
        packer = SequencePacker(
            order, tokens, length=length, block=block
        )  # resumed from the cursor alone
        step = packer.step(cursor, sizes[number % len(sizes)])
        for pack in step.packs:
            assert 0 < pack.lengths.sum() <= length
            assert set(order.stream_of(pack.positions).tolist()) == {pack.stream}
            for at, begin, size in zip(pack.positions, pack.starts, pack.lengths, strict=True):
                if at < 2 * n:
                    got[at] += size
                    assert (int(at), int(begin)) not in seen
                    seen.add((int(at), int(begin)))
        cursor, number = step.after, number + 1
    assert got[: 2 * n].tolist() == tokens(np.arange(2 * n)).tolist()


@settings(max_examples=times(30), deadline=None)
@given(COUNTS, st.integers(1, 6), st.integers(2, 50), st.integers(1, 40))
def test_the_document_says_what_is_done(
    counts: list[int], streams: int, length: int, block: int
) -> None:
    order = Order([*counts, 2], streams=streams)
    packer = SequencePacker(order, tokens, length=length, block=block)
    positions = range(min(block, order.samples))
    expected = reference.packs(
        positions,
        tokens(np.array(positions)).tolist(),
        lambda p: int(order.stream_of(p)),
        length,
    )
    if not expected:
        return
    step = packer.step(0, len(expected))
    columns = [np.stack(pack[:3], axis=1).tolist() for pack in step.packs]
    assert [[tuple(piece) for piece in pack] for pack in columns] == expected


@pytest.mark.parametrize(("long", "kept"), [("split", 48), ("cut", 26), ("skip", 6)])
def test_documents_longer_than_a_sequence(long: Long, kept: int) -> None:
    lengths = np.array([25, 6, 17])
    order = Order([3], shuffle=False)
    packer = SequencePacker(order, lambda p: lengths[p % 3], length=10, long=long)
    step = packer.step(0, 9, "pad")
    real = [pack for pack, mask in zip(step.packs, step.mask, strict=True) if mask]
    assert sum(int(pack.lengths.sum()) for pack in real) == kept
    assert max(int(pack.lengths.sum()) for pack in step.packs) <= 10
    assert step.after == 1 << 24


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_tails_keep_epochs_apart(tail: Tail) -> None:
    order = Order([40, 23], seed=4, streams=4)
    packer = SequencePacker(order, tokens, length=32, block=20)
    cursor, got = 0, 0
    while (step := packer.step(cursor, 5, tail)).packs[0].positions[0] < 63:
        assert len(step.packs) == 5
        assert all(pack.positions.max() < 63 for pack in step.packs)
        got += sum(int(p.lengths.sum()) for p, m in zip(step.packs, step.mask, strict=True) if m)
        cursor = step.after
    whole = int(tokens(np.arange(63)).sum())
    assert got == whole if tail == "pad" else whole - 5 * 32 < got <= whole
    with pytest.raises(ValueError, match="never full"):
        packer.step(0, 1000, "drop")


def test_ranks_read_packs_of_streams_next_to_one_another() -> None:
    order = Order([4000], streams=8)
    packer = SequencePacker(order, tokens, length=64, block=1600)
    step = packer.step(0, 64)
    streams = np.array([pack.stream for pack in step.packs])
    assert np.bincount(streams, minlength=8).min() >= 6
    for rank in range(4):
        taken, mask = take(streams, rank, 4)
        assert mask.all()
        assert set(streams[taken].tolist()) <= set(range(2 * rank - 1, 2 * rank + 3))


def test_packs_are_nearly_full() -> None:
    order = Order([40_000], seed=1)
    packer = SequencePacker(order, tokens, length=256, block=32768)
    packs = packer.step(0, 1800).packs
    assert np.mean([pack.lengths.sum() for pack in packs]) > 0.98 * 256


def test_mixtures_can_be_packed() -> None:
    mixed = MixedOrder([Order([50]), Order([70])], Mixture([segment(0, [1, 2])]))
    step = SequencePacker(mixed, tokens, length=40, block=300).step(0, 50)
    assert len(step.packs) == 50


@settings(max_examples=times(8), deadline=None)
@given(
    gaps=st.lists(st.integers(1, 25), max_size=3),
    block=st.integers(1, 12),
    length=st.integers(8, 40),
    size=st.integers(3, 9),
)
def test_blocks_end_at_borders_as_the_document_says(
    gaps: list[int], block: int, length: int, size: int
) -> None:
    order = MixedOrder([Order([30, 9], streams=3)], Mixture([segment(0, [1])], block=16))
    borders = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    due = list[tuple[int, int, int]]()
    for begin, end in pairwise([0, *borders, sum(gaps) + 6 * block]):
        for first in range(begin, end, block):
            positions = range(first, min(first + block, end))
            counts = tokens(np.array(positions)).tolist()
            places = order.stream_of(np.array(positions)).tolist()
            of = dict(zip(positions, places, strict=True))
            for pieces in reference.packs(positions, counts, of.__getitem__, length):
                due += [*pieces, (-1, -1, -1)]
    found = list[tuple[int, int, int]]()
    cursor = 0
    while len(found) < len(due):
        packer = SequencePacker(order, tokens, length=length, block=block, borders=borders)
        step = packer.step(cursor, size)
        for pack in step.packs:
            columns = (pack.positions, pack.starts, pack.lengths)
            found += zip(*(column.tolist() for column in columns), strict=True)
            found.append((-1, -1, -1))
        cursor = step.after
    assert found[: len(due)] == due


def test_packs_without_tokens_are_an_error() -> None:
    packer = SequencePacker(Order([50]), lambda p: p * 0, length=8)
    for tail in ("straddle", "pad", "drop"):
        with pytest.raises(ValueError, match=r"no token|never full"):
            packer.step(0, 1, tail)


def test_impossible_arguments_are_refused() -> None:
    order = Order([50])
    for options in ({"length": 0}, {"length": 1, "block": 0}, {"length": 1, "long": "no"}):
        with pytest.raises(ValueError, match="must be"):
            SequencePacker(order, tokens, **options)
    packer = SequencePacker(order, tokens, length=8)
    for cursor in (-1, 2**23):
        with pytest.raises(ValueError, match="not a cursor"):
            packer.step(cursor, 1)
    with pytest.raises(ValueError, match="size"):
        packer.step(0, 0)
    huge = SequencePacker(order, lambda p: p * 0 + 2**31, length=1)
    with pytest.raises(ValueError, match="smaller block"):
        huge.step(0, 1)
    with pytest.raises(ValueError, match="-3 tokens"):
        SequencePacker(order, lambda p: p * 0 - 3, length=1).step(0, 1)


def test_boundaries_of_a_sequence() -> None:
    found = boundaries([3, 2], 8)
    assert found.cu_seqlens.tolist() == [0, 3, 5, 8]
    assert found.max_seqlen == 3
    assert found.document_ids.tolist() == [0, 0, 0, 1, 1, -1, -1, -1]
    assert found.position_ids.tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert boundaries([4], 4).cu_seqlens.tolist() == [0, 4]
    for lengths in ([5], [0, 2], [3, -1]):
        with pytest.raises(ValueError, match="at most 4"):
            boundaries(lengths, 4)
