"""Packing of documents into sequences of a fixed number of tokens, planned from their lengths.

The stream is cut into blocks of consecutive positions, which never cross the end of an epoch. The
documents of a block are packed stream by stream (so a pack is read by the node that reads its
stream) by best fit decreasing, and the packs of all streams are interleaved. A block is planned
from its own lengths alone, so resuming anywhere costs one block.

The number of packs of a block is known only from its lengths. So the state is not the number of
packs so far, which would need the lengths of all blocks before, but block * 2**24 + pack in the
block: still one integer, the same on every rank, whatever the number of ranks.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from data.order.best_fit import best_fit
from data.order.keyed_permutation import Ints
from data.order.rank_shares import Bools, StreamedOrder, Tail, step_at
from data.order.sample_order import MAX_POSITION
from data.order.skipped_ranges import NOTHING_SKIPPED, SkippedRanges

PACK = "pack-1"
"""Frozen: a change of any pack or of their order needs a new name."""
SPAN = 2**24  # packs in a block, at most
_EMPTY_BLOCKS = 1000  # blocks without a single token, in a row, until an error
_KEEP = 4

Long: TypeAlias = Literal["split", "cut", "skip"]
Lengths: TypeAlias = Callable[[Ints], Ints]


class SequencePack(NamedTuple):
    """One sequence: of the document at positions[i], `lengths[i]` tokens from starts[i] on."""

    positions: Ints
    starts: Ints
    lengths: Ints
    stream: int


class PackStep(NamedTuple):
    """The global step that begins at a cursor; like `GlobalStep`, for packs."""

    packs: Sequence[SequencePack]
    mask: Bools
    after: int


@dataclass(frozen=True)
class _Block:
    """The packs of a block: pack i has the pieces bounds[i] .. bounds[i + 1] - 1."""

    positions: Ints
    starts: Ints
    lengths: Ints
    bounds: Ints
    streams: Ints

    def pack(self, number: int) -> SequencePack:
        part = slice(int(self.bounds[number]), int(self.bounds[number + 1]))
        stream = int(self.streams[number])
        return SequencePack(self.positions[part], self.starts[part], self.lengths[part], stream)


class _Run(NamedTuple):
    """Blocks from number `number` on, of the positions `begin` to `end`."""

    number: int
    begin: int
    end: int


class _Version(NamedTuple):
    """Blocks from number `number` on, of epochs of `samples` positions and `blocks` blocks."""

    number: int
    begin: int
    epoch: int
    samples: int
    blocks: int


class SequencePacker:
    """Packs the documents of `order` into sequences of `length` tokens.

    `tokens` returns the number of tokens of the document at each position (from the index). A block
    has `block` positions, so about block / streams documents are packed together; a new one begins
    at each of the positions `borders` of an order without epochs. The epochs of a dataset that has
    grown differ in length, as its `versions` (begin, epoch, samples) say. A document longer
    than a sequence is split over several ("split": every token comes exactly once per epoch),
    truncated ("cut"), or left out ("skip"). Raises ValueError for impossible arguments.
    """

    def __init__(
        self,
        order: StreamedOrder,
        tokens: Lengths,
        *,
        length: int,
        block: int = 32768,
        long: Long = "split",
        borders: Sequence[int] = (),
        versions: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        if length < 1 or block < 1:
            raise ValueError(f"length and block must be at least 1, got {length} and {block}")
        if long not in get_args(Long):
            raise ValueError(f'long must be "split", "cut" or "skip", got {long!r}')
        self._order = order
        self._tokens = tokens
        self.length = length
        self.block = block
        self.long = long
        self._runs = _runs(borders, block)
        self._versions = _versions(versions or [(0, 0, order.samples)], block, len(borders))
        self._per_epoch = self._versions[-1].blocks
        self._blocks: dict[int, _Block] = {}
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """The identity of this packing, besides the order and the dataset."""
        return f"{PACK} length={self.length} block={self.block} long={self.long}"

    def step(
        self,
        cursor: int,
        size: int,
        tail: Tail = "straddle",
        skipped: SkippedRanges = NOTHING_SKIPPED,
    ) -> PackStep:
        """Return the `size` packs from `cursor` on; cursor 0 is the beginning. `tail` as in
        `step_at`. Packs whose cursors are in `skipped` are left out.

        A padded step repeats its own packs. Raises ValueError for an invalid cursor, and if no
        document has a token, or "drop" drops all.
        """
        number, first = divmod(cursor, SPAN)
        if cursor < 0 or first > self._plan(number).streams.size:
            raise ValueError(
                f"{cursor} is not a cursor of these packs: the documents have changed, or others "
                "were left out of earlier epochs when it was saved"
            )
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        number, first = divmod(skipped.next_kept(cursor), SPAN)
        border = (number // self._per_epoch + 1) * self._per_epoch
        end = None if tail == "straddle" else border
        packs, after = self._gather(number, first, size, end, skipped)
        if len(packs) == size:
            return PackStep(packs, np.ones(size, dtype=bool), after)
        if tail == "pad" and packs:
            mask = np.arange(size) < len(packs)
            return PackStep([packs[i % len(packs)] for i in range(size)], mask, border * SPAN)
        packs, after = self._gather(border, 0, size, border + self._per_epoch)
        if not packs or (tail == "drop" and len(packs) < size):
            raise ValueError(f"an epoch has {len(packs)} packs, so a step of {size} is never full")
        return self.step(border * SPAN, size, tail, skipped)

    def cursor_of_epoch(self, epoch: int) -> int:
        """Return the cursor at which an epoch begins."""
        version = self._versions[bisect_right(self._versions, epoch, key=lambda v: v.epoch) - 1]
        return (version.number + (epoch - version.epoch) * version.blocks) * SPAN

    def border(self, cursor: int) -> int:
        """Return the first position after the block that `cursor` is in."""
        begin, size = self._span(cursor // SPAN)
        return begin + size

    def reached(self, cursor: int) -> int:
        """Return the approximate position of the documents that are read at `cursor`."""
        number, first = divmod(cursor, SPAN)
        begin, size = self._span(number)
        return begin + size * first // max(self._plan(number).streams.size, 1)

    def forget_after(self, number: int) -> None:
        """Plan the blocks after block `number` again: the tokens of their documents may have
        changed."""
        with self._lock:
            self._blocks = {at: block for at, block in self._blocks.items() if at <= number}

    def _gather(
        self,
        number: int,
        first: int,
        size: int,
        end: int | None,
        skipped: SkippedRanges = NOTHING_SKIPPED,
    ) -> tuple[list[SequencePack], int]:
        """Return up to `size` packs before block `end`, and the cursor after them."""
        packs: list[SequencePack] = []
        empty = 0
        while end is None or number < end:
            block, begin = self._plan(number), number * SPAN
            while first < block.streams.size and len(packs) < size:
                kept = skipped.next_kept(begin + first) - begin
                border = skipped.next_skipped(begin + kept)
                last = min(block.streams.size, kept + size - len(packs))
                first = last if border is None else min(last, border - begin)
                packs += [block.pack(i) for i in range(kept, first)]
                first = max(first, kept)
            if len(packs) == size:
                return packs, begin + first
            empty = 0 if block.streams.size else empty + 1
            if empty > min(_EMPTY_BLOCKS, self._per_epoch):
                raise ValueError(f"{empty} blocks of {self.block} documents have no token to pack")
            number, first = number + 1, 0
        return packs, number * SPAN

    def _plan(self, number: int) -> _Block:
        with self._lock:
            block = self._blocks.get(number)
            if block is None:
                block = self._packed(number)
                self._blocks = {**dict(list(self._blocks.items())[1 - _KEEP :]), number: block}
            return block

    def _span(self, number: int) -> tuple[int, int]:
        """Return (first position, positions) of a block."""
        if len(self._runs) > 1:
            run = self._runs[bisect_right(self._runs, number, key=lambda one: one.number) - 1]
            begin = run.begin + (number - run.number) * self.block
            return begin, min(self.block, run.end - begin)
        version = self._versions[bisect_right(self._versions, number, key=lambda v: v.number) - 1]
        epoch, within = divmod(number - version.number, version.blocks)
        before = within * self.block
        begin = version.begin + epoch * version.samples + before
        return begin, min(self.block, version.samples - before)

    def _packed(self, number: int) -> _Block:
        begin, size = self._span(number)
        positions = step_at(begin, size, self._order.samples).positions
        which, starts, lengths = _pieces(self._tokens(positions), self.length, self.long)
        positions = positions[which]
        streams = self._order.stream_of(positions)
        packs, owners = best_fit(streams, lengths, self.length)
        by_pack = np.argsort(packs, kind="stable")
        bounds = np.searchsorted(packs[by_pack], np.arange(owners.size + 1))
        return _Block(positions[by_pack], starts[by_pack], lengths[by_pack], bounds, owners)


def _versions(versions: Sequence[tuple[int, int, int]], block: int, borders: int) -> list[_Version]:
    """Return the blocks of the versions of a dataset: (begin, epoch, samples) of each, whose epochs
    have a block more for each of `borders` borders."""
    found: list[_Version] = []
    for begin, epoch, samples in versions:
        last = found[-1] if found else None
        number = 0 if last is None else last.number + (epoch - last.epoch) * last.blocks
        found.append(_Version(number, begin, epoch, samples, -(-samples // block) + borders))
    return found


def _runs(borders: Sequence[int], block: int) -> list[_Run]:
    """Return the runs of blocks between these rising positions."""
    begins = [0, *(border for border in borders if border)]
    numbers = [0]
    for begin, end in pairwise(begins):
        numbers.append(numbers[-1] + -(-(end - begin) // block))
    return list(map(_Run, numbers, begins, [*begins[1:], MAX_POSITION]))


def _pieces(tokens: Ints, length: int, long: Long) -> tuple[Ints, Ints, Ints]:
    """Return (document, first token, tokens) of each piece of at most `length` tokens."""
    tokens = np.asarray(tokens, dtype=np.int64)
    if long == "cut":
        tokens = np.minimum(tokens, length)
    elif long == "skip":
        tokens = np.where(tokens > length, 0, tokens)
    if tokens.size and int(tokens.min()) < 0:
        raise ValueError(f"document {int(tokens.argmin())} of a block has {tokens.min()} tokens")
    counts = -(-tokens // length)
    pieces = float(counts.sum(dtype=np.float64))
    if pieces >= SPAN:
        raise ValueError(
            f"a block of {tokens.size} documents makes {pieces:.0f} pieces of at most {length}"
            f" tokens; at most {SPAN - 1} are possible: take a smaller block"
        )
    which = np.repeat(np.arange(tokens.size), counts)
    starts = (np.arange(which.size) - np.repeat(np.cumsum(counts) - counts, counts)) * length
    return which, starts, np.minimum(tokens[which] - starts, length)
