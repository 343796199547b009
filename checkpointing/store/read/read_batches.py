"""Chooses which chunks are read together: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from checkpointing.format.chunks import Chunk, Place

T = TypeVar("T")

GAP = 64 << 10  # bytes that may be read needlessly to save a request, but never more than 1/16


def chain(chunk: Chunk, held: Container[bytes] = ()) -> Iterator[Chunk]:
    """Yield a chunk, then its bases, up to the first one whose id is among those held."""
    yield chunk
    at = chunk.base
    while at is not None and at.id not in held:
        yield at
        at = at.base


def batches(wants: Iterable[T], chunk_of: Callable[[T], Chunk], size: int) -> Iterator[list[T]]:
    """Divide all `wants` into groups that lie close together, each of about `size` decoded bytes
    with all bases. Chunks with the same base follow each other, after the base if it is wanted
    itself."""
    batch: list[T] = []
    filled = 0
    seen: tuple[Place, ...] = ()  # the path of the last one: its bases and itself
    for path, want in _in_order(wants, chunk_of):
        if path == seen:
            cost = 0
        elif len(path) == 1:
            cost = chunk_of(want).raw_length
        else:
            sizes = [at.raw_length for at in chain(chunk_of(want))]
            shared = sum(a == b for a, b in zip(path, seen, strict=False))
            cost = sum(sizes[: len(path) - shared])
        if batch and filled + cost > size:
            yield batch
            batch, filled, cost = [], 0, sum(at.raw_length for at in chain(chunk_of(want)))
        batch.append(want)
        filled, seen = filled + cost, path
    if batch:
        yield batch


def _in_order(
    wants: Iterable[T], chunk_of: Callable[[T], Chunk]
) -> Iterator[tuple[tuple[Place, ...], T]]:
    """Yield the wants, each with the places of all its bases and its own. Chunks that share a base
    follow each other. Such families are ordered by the place of their member with the most bases,
    because those members of one checkpoint were written one after the other."""
    families: dict[Place, list[tuple[tuple[Place, ...], T]]] = {}
    for want in wants:
        chunk = chunk_of(want)
        if chunk.base is None:
            path: tuple[Place, ...] = (chunk.place,)
        else:
            path = tuple(at.place for at in chain(chunk))[::-1]
        families.setdefault(path[0], []).append((path, want))
    for family in sorted(families.values(), key=_key):
        if len(family) > 1:
            family.sort(key=lambda pair: pair[0])
        yield from family


def _key(family: Sequence[tuple[tuple[Place, ...], T]]) -> Place:
    if len(family) == 1:
        return family[0][0][-1]
    return min((-len(path), path[-1]) for path, _ in family)[1]


def batches_at_a_time(count: int, threads: int, most: int) -> int:
    """Return how many of about `count` batches, and at most `most`, a thread takes at a time: fewer
    where there are few, so that each thread has some."""
    return max(1, min(most, count // threads))


def in_lists(things: Iterable[T], count: int) -> Iterator[list[T]]:
    """Yield the things in lists of `count`, the last one of what is left."""
    them = iter(things)
    while found := list(islice(them, count)):
        yield found


def by_place(wants: Iterable[T], chunk_of: Callable[[T], Chunk], size: int) -> Iterator[list[T]]:
    """Divide all `wants` into groups that lie close together, each of about `size` stored bytes."""
    group: list[T] = []
    filled = 0
    for want in sorted(wants, key=lambda want: chunk_of(want).place):
        stored = chunk_of(want).length
        if group and filled + stored > size:
            yield group
            group, filled = [], 0
        group.append(want)
        filled += stored
    if group:
        yield group


def ranges(chunks: Iterable[Chunk], gap: int = GAP) -> Iterator[list[Chunk]]:
    """Group chunks into ranges, each for one read: of one pack, with little between them."""
    unique = {(c.pack, c.offset, c.length): c for c in chunks}
    group: list[Chunk] = []
    for _, chunk in sorted(unique.items(), key=lambda pair: pair[0]):
        if group and not _joins(group, chunk, gap):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def length(group: Sequence[Chunk]) -> int:
    """Return the bytes from the start of the first chunk of a range to the end of the last."""
    return max(chunk.offset + chunk.length for chunk in group) - group[0].offset


def _joins(group: Sequence[Chunk], chunk: Chunk, gap: int) -> bool:
    first, last = group[0], group[-1]
    between = chunk.offset - (last.offset + last.length)
    span = last.offset + last.length - first.offset
    return chunk.pack == first.pack and between <= min(gap, span // 16)
