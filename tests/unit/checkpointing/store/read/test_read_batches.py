"""Which chunks are read together: each once, families in one place, in bounded memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.codec import Codec
from checkpointing.format.chunks import Chunk
from checkpointing.store.read.read_batches import (
    batches,
    batches_at_a_time,
    by_place,
    chain,
    in_lists,
    ranges,
)


def _chunk(pack: int, offset: int, raw_length: int, base: Chunk | None = None) -> Chunk:
    codec = Codec.RAW if base is None else Codec.DELTA
    length = max(raw_length // 2, 1)
    return Chunk(bytes(32), bytes([pack]) * 16, offset, length, raw_length, codec, 0, base)


@st.composite
def _chunks(draw: st.DrawFn) -> list[Chunk]:
    """Chunks at places of their own, some relative to others."""
    made: list[Chunk] = []
    ends: Counter[int] = Counter()
    for _ in range(draw(st.integers(0, 30))):
        pack, size = draw(st.integers(0, 3)), draw(st.integers(1, 400))
        base = draw(st.sampled_from([None, *made]))
        at = ends[pack] + draw(st.sampled_from([0, 0, 0, 7, 100]))
        made.append(_chunk(pack, at, size, base))
        ends[pack] = at + made[-1].length
    return draw(st.permutations(made))


@settings(deadline=None)
@given(chunks=_chunks(), size=st.integers(1, 3000))
def test_every_chunk_is_in_one_batch_and_in_bounded_memory(chunks: list[Chunk], size: int) -> None:
    cut = list(batches(chunks, lambda chunk: chunk, size))
    assert Counter(c for batch in cut for c in batch) == Counter(chunks)
    for batch in cut:
        sizes = {at.place: at.raw_length for chunk in batch for at in chain(chunk)}
        assert len(batch) == 1 or sum(sizes.values()) <= size


@settings(deadline=None)
@given(chunks=_chunks())
def test_what_needs_one_chunk_comes_right_after_it(chunks: list[Chunk]) -> None:
    (order,) = list(batches(chunks, lambda chunk: chunk, 1 << 40)) or [[]]
    roots = [list(chain(chunk))[-1].place for chunk in order]
    assert sum(a != b for a, b in pairwise(roots)) == max(len(set(roots)) - 1, 0)
    wanted = {chunk.place: i for i, chunk in enumerate(order)}
    for i, chunk in enumerate(order):
        assert all(wanted.get(at.place, -1) <= i for at in chain(chunk))


def test_a_family_is_decoded_with_each_base_once() -> None:
    base = _chunk(0, 0, 10)
    other = _chunk(1, 0, 10)
    deltas = [_chunk(2 + i % 2, 10 * i, 10, (base, other)[i // 3 % 2]) for i in range(12)]
    order = [c for batch in batches([*deltas, base, other], lambda c: c, 10_000) for c in batch]
    for root in (base, other):
        first = order.index(root)
        assert all(chunk.base == root for chunk in order[first + 1 : first + 7])


def test_alone_they_are_in_the_order_of_their_places() -> None:
    bases = [_chunk(9 - i, 0, 10) for i in range(5)]  # in many packs, the other way round
    deltas = [_chunk(0, 10 * i, 10, base) for i, base in enumerate(bases)]
    assert [c for batch in batches(deltas[::-1], lambda c: c, 50) for c in batch] == deltas


@settings(deadline=None)
@given(chunks=_chunks(), size=st.integers(1, 1000))
def test_by_place(chunks: list[Chunk], size: int) -> None:
    groups = list(by_place(chunks, lambda chunk: chunk, size))
    assert [c for g in groups for c in g] == sorted(chunks, key=lambda c: c.place)
    assert all(len(g) == 1 or sum(c.length for c in g) <= size for g in groups)


@settings(deadline=None)
@given(chunks=_chunks())
def test_a_range_is_of_one_pack_and_nearly_without_gaps(chunks: list[Chunk]) -> None:
    groups = list(ranges(chunks))
    assert sorted(c.place for g in groups for c in g) == sorted({c.place for c in chunks})
    for group in groups:
        assert len({chunk.pack for chunk in group}) == 1
        for i in range(1, len(group)):
            end = group[i - 1].offset + group[i - 1].length
            assert group[i].offset - end <= (end - group[0].offset) / 16


def test_bases_are_needed_up_to_the_first_that_is_held() -> None:
    root = replace(_chunk(0, 0, 9), id=b"r")
    middle = replace(_chunk(0, 9, 9, root), id=b"m")
    chunk = replace(_chunk(0, 18, 9, middle), id=b"c")
    assert list(chain(chunk, set())) == [chunk, middle, root]
    assert list(chain(chunk, {b"r"})) == [chunk, middle]
    assert list(chain(chunk, {b"m"})) == [chunk]
    assert list(chain(chunk, {b"c"})) == [chunk, middle, root]  # the chunk itself is read


@given(things=st.lists(st.integers()), count=st.integers(1, 5))
def test_lists_have_all_in_order_and_none_is_short_but_the_last(
    things: list[int], count: int
) -> None:
    found = list(in_lists(things, count))
    assert [one for those in found for one in those] == things
    assert all(len(those) == count for those in found[:-1])
    assert all(found)


def test_each_thread_has_some_of_few_batches() -> None:
    found = {count: batches_at_a_time(count, 8, 8) for count in (0, 7, 16, 63, 64, 999)}
    assert found == {0: 1, 7: 1, 16: 2, 63: 7, 64: 8, 999: 8}
    assert batches_at_a_time(999, 8, 1) == 1
