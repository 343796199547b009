"""The global steps of a pass over the stream, and each rank's share of them: pure functions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from data.errors import PipelineError
from data.order.rank_shares import RankShare, StreamedOrder, take
from data.wds.ranks_and_workers import DataParallelRank

Tail: TypeAlias = Literal["straddle", "partial", "drop"]


@dataclass(frozen=True)
class PassSteps:
    """The steps of `size` positions over all ranks, in passes of `length` positions.

    Where an epoch of the stream ends within a step: "straddle" continues in the next epoch;
    "partial" makes the last step of each epoch smaller, or larger by less than one sample a rank,
    so that no rank is left without a sample; "drop" leaves those samples out. Raises PipelineError
    for invalid numbers.
    """

    stream: StreamedOrder
    size: int
    ranks: DataParallelRank
    tail: Tail
    length: int | None
    """Positions of a pass; passes begin at its multiples. None: a pass never ends."""

    def __post_init__(self) -> None:
        if self.tail not in get_args(Tail):
            raise PipelineError(f"tail must be one of {get_args(Tail)}, got {self.tail!r}")
        if self.size < 1 or self.size % self.ranks.world:
            raise PipelineError(
                f"a global batch of {self.size} cannot be shared evenly by {self.ranks.world}"
                f" ranks: use a multiple of {self.ranks.world}"
            )
        if self.length is not None and self.length < 1:
            raise PipelineError(f"a pass must have at least 1 sample, got {self.length}")
        if self.tail == "drop" and self.size > self.stream.samples:
            raise PipelineError(
                f"every sample would be dropped: an epoch has {self.stream.samples}, a global"
                f' batch {self.size}; use a smaller batch or tail="straddle"'
            )

    def until(self, position: int) -> int | None:
        """Return where the pass at `position` ends and the next one begins."""
        if self.length is None:
            return None
        end = (position // self.length + 1) * self.length
        if self.tail == "straddle":
            return position - (position - end) // self.size * self.size
        return end

    def after(self, position: int) -> tuple[int, int]:
        """Return (where the step at `position` begins after samples that are dropped, where it
        ends)."""
        left = self.stream.samples - position % self.stream.samples
        if self.tail == "straddle" or left == self.size:
            return position, position + self.size
        if self.tail == "drop":
            begin = position + left if left < self.size else position
            return begin, begin + self.size
        if left < self.ranks.world:
            raise PipelineError(
                f"{left} samples are left of the epoch at position {position}, too few for"
                f' {self.ranks.world} ranks: use tail="straddle", or fewer ranks'
            )
        over = left - self.size
        size = left if over < self.ranks.world else self.size
        return position, position + size

    def advance(self, position: int, steps: int) -> int:
        """Return the position `steps` steps later."""
        for _ in range(steps):
            position = self.after(position)[1]
        return position

    def begins(self, position: int, until: int | None) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of the steps from `position` on."""
        while until is None or position < until:
            begin, position = self.after(position)
            if until is not None and begin >= until:
                return
            yield begin, position

    def begin_of_pass(self, position: int) -> int | None:
        """Return where the pass at `position` began, if all of it had steps as here; None if passes
        do not end."""
        if self.length is None:
            return None
        begin = position // self.length * self.length
        if self.tail == "straddle":
            return position - (position - begin) // self.size * self.size
        return begin

    def begin_of_ended(self, end: int) -> int | None:
        """Return where the pass that ends at a position began, as `begin_of_pass`."""
        last = self.size if self.tail == "straddle" else 1  # which may end beyond the pass
        return self.begin_of_pass(max(0, end - last))

    def sizes(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (size, number) of the steps from one position to another, in runs of equal ones."""
        if self.tail == "straddle":
            yield self.size, -(-(end - begin) // self.size)
            return
        world, position = self.ranks.world, begin
        while position < end:
            left = self.stream.samples - position % self.stream.samples
            if position + left > end:  # the pass ends within an epoch
                yield from ((after - at, 1) for at, after in self.begins(position, end))
                return
            full, rest = divmod(left, self.size)
            position += left
            if self.tail == "partial" and rest and full and rest < world:
                yield self.size, full - 1
                yield self.size + rest, 1
            else:
                yield self.size, full
                if self.tail == "partial" and rest:
                    yield rest, 1

    def share(self, begin: int, end: int) -> RankShare:
        """Return this rank's share of the step of the positions from `begin` to `end`."""
        positions = np.arange(begin, end, dtype=np.int64)
        rank, world = self.ranks
        taken, mask = take(self.stream.placement_of(positions), rank, world, "ragged")
        return RankShare(positions[taken], mask, len(taken) * world / (end - begin), end)
