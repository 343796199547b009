"""The images from which a follower makes each step: the weights of the step before, the bases of
differences, and, if numbers are cast, the weights as stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from checkpointing.errors import DamagedError
from checkpointing.follower.chunk_plan import (
    ChunkPlan,
    Slot,
    WantedChunk,
    missing_bases,
    plan_chunks,
)
from checkpointing.follower.dtype_casts import cast
from checkpointing.follower.follow_record import BASES, STORED, FollowRecord
from checkpointing.follower.follow_targets import FollowTarget
from checkpointing.follower.weight_image import Bits, WeightImage
from checkpointing.follower.weight_layout import WeightLayout, lay_out
from checkpointing.format.element_types import element
from checkpointing.storage import Buffer
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.read.chunk_copies import StoreCopies
from checkpointing.store.read.chunk_fetcher import THREADS, ChunkFetcher, ChunkRequest

logger = logging.getLogger("checkpointing")

T = TypeVar("T")


@dataclass
class StepCounts:
    """How many chunks of a step came from where."""

    chunks: int = 0
    fetched: int = 0  # read from the store, without bases
    bases: int = 0  # bases read from the store


@dataclass
class StepImages:
    """What a follower holds. Not thread-safe.

    Attributes:
        layout: of the weights.
        weights: the image of the last step; None: there is none.
        bases: the bases that the chunks of the last step are stored relative to.
        stored: the last step as stored, if its numbers are cast; otherwise None.
    """

    layout: WeightLayout
    bases: WeightImage
    stored: WeightImage | None
    weights: WeightImage | None = None
    counts: StepCounts = field(default_factory=StepCounts)

    @classmethod
    def open(
        cls, target: FollowTarget, layout: WeightLayout, record: FollowRecord | None = None
    ) -> StepImages:
        """Create the images, or open those of an earlier process.

        Raises:
            OSError: there is no room for them.
        """
        plain = lay_out(layout.stored) if layout.is_cast else layout
        bases = target.private(BASES, plain, record)
        try:
            stored = target.private(STORED, plain, record) if layout.is_cast else None
        except BaseException:
            bases.close()
            raise
        images = cls(layout, bases, stored)
        for image in images.private:
            check_image(image)
        return images

    @property
    def private(self) -> list[WeightImage]:
        """The images that no consumer reads."""
        return [image for image in (self.bases, self.stored) if image is not None]

    def make(
        self, checkpoint: Checkpoint, wanted: Sequence[WantedChunk], into: WeightImage
    ) -> None:
        """Fill an image with a step. Only chunks whose content is not held are read from the store.

        Raises:
            DamagedError: a chunk cannot be read as it was written; the image is not whole then.
            StoreError: the store is out of reach.
            OSError: an image cannot be written.
        """
        self.counts = StepCounts(len(wanted))
        slots = [want.slot for want in wanted]
        for image in (*self.private, into):
            image.keep_slots(slots)
        plan = self._plan(wanted, into)
        fetched = [*plan.fetched, *self._copy(plan, into)]
        self._have_bases(checkpoint, fetched)
        self.counts.fetched = len(fetched)
        self._fetch(checkpoint, fetched, partial(self._put, into))

    def close(self) -> None:
        """Release the private images."""
        for image in self.private:
            image.close()

    def _plan(self, wanted: Sequence[WantedChunk], into: WeightImage) -> ChunkPlan:
        raw = [image.ids for image in self.private]
        held = {} if self.weights is None else self.weights.ids
        return plan_chunks(wanted, target=into.ids, held=held, raw=raw)

    def _copy(self, plan: ChunkPlan, into: WeightImage) -> list[WantedChunk]:
        """Copy what is held; return the chunks of which the copy turned out to be damaged."""
        jobs: list[Callable[[], WantedChunk | None]] = []
        for want, slot in plan.copied:
            jobs.append(partial(self._copy_weights, into, want, slot))
        for want in plan.raw:
            jobs.append(partial(self._copy_raw, into, want))
        return [want for want in _in_threads(jobs) if want is not None]

    def _copy_weights(self, into: WeightImage, want: WantedChunk, slot: Slot) -> WantedChunk | None:
        assert self.weights is not None
        try:
            bits = self._weights_at(slot)
        except DamagedError as error:
            logger.warning("%s; it is fetched again", error)
            return want
        into.write(want.slot, want.chunk.id, bits.reshape(want.box.sizes))
        return None

    def _weights_at(self, slot: Slot) -> Bits:
        """Return the weights of the last step in a slot. After a cast they cannot be compared."""
        assert self.weights is not None
        is_cast = self.stored is not None
        return self.weights.read(slot) if is_cast else self.weights.checked(slot)

    def _copy_raw(self, into: WeightImage, want: WantedChunk) -> WantedChunk | None:
        for image in self.private:
            if image.ids.get(want.slot) == want.chunk.id:
                try:
                    self._put(into, want, image.checked(want.slot).reshape(-1).view(np.uint8).data)
                except DamagedError as error:
                    logger.warning("%s; it is fetched again", error)
                    image.ids.pop(want.slot, None)
                else:
                    return None
        return want

    def _put(self, into: WeightImage, want: WantedChunk, raw: Buffer) -> None:
        """Write the content of a chunk to the image, and to the stored weights."""
        bits = np.frombuffer(raw, element(want.dtype).bits).reshape(want.box.sizes)
        if self.stored is not None and self.stored.ids.get(want.slot) != want.chunk.id:
            self.stored.write(want.slot, want.chunk.id, bits)
        dtype = self.layout.tensors[want.name].dtype
        into.write(want.slot, want.chunk.id, cast(bits, want.dtype, dtype))

    def _have_bases(self, checkpoint: Checkpoint, fetched: Sequence[WantedChunk]) -> None:
        """Have the base of each chunk in its slot: copied from the last step, or read."""
        missing = missing_bases(fetched, self.bases.ids)
        jobs = [partial(self._copy_base, want) for want in missing]
        to_read = [want for want in _in_threads(jobs) if want is not None]
        self.counts.bases = len(to_read)
        self._fetch(checkpoint, to_read, self._put_base)

    def _copy_base(self, want: WantedChunk) -> WantedChunk | None:
        source = self.weights if self.stored is None else self.stored
        if source is None or source.ids.get(want.slot) != want.chunk.id:
            return want
        try:
            bits = source.checked(want.slot)
        except DamagedError as error:
            logger.warning("%s; it is fetched again", error)
            return want
        self.bases.write(want.slot, want.chunk.id, bits)
        return None

    def _put_base(self, want: WantedChunk, raw: Buffer) -> None:
        bits = np.frombuffer(raw, element(want.dtype).bits).reshape(want.box.sizes)
        self.bases.write(want.slot, want.chunk.id, bits)

    def _fetch(
        self,
        checkpoint: Checkpoint,
        wanted: Sequence[WantedChunk],
        put: Callable[[WantedChunk, Buffer], None],
    ) -> None:
        if not wanted:
            return
        store = checkpoint.store
        held = self._held_bases(wanted)
        fetcher = ChunkFetcher(store.storage, StoreCopies([store]), held=held)
        damaged = fetcher.fetch(_requests(wanted, put))
        if damaged:
            more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
            raise DamagedError(f"{checkpoint.id}: {damaged[0]}{more}")

    def _held_bases(self, wanted: Iterable[WantedChunk]) -> dict[bytes, Callable[[], Buffer]]:
        held: dict[bytes, Callable[[], Buffer]] = {}
        for want in wanted:
            base = want.chunk.base
            while base is not None and base.id not in held:
                if self.bases.ids.get(want.slot) == base.id:
                    held[base.id] = partial(self._base_at, want.slot)
                base = base.base
        return held

    def _base_at(self, slot: Slot) -> Buffer:
        return self.bases.read(slot).reshape(-1).view(np.uint8).data


def check_image(image: WeightImage) -> int:
    """Compare everything that an image claims to contain with its hash, and forget what differs.
    Return how many slots differed."""

    def check(slot: Slot) -> Slot | None:
        try:
            image.checked(slot)
        except DamagedError:
            return slot
        return None

    wrong = [slot for slot in _in_threads([partial(check, s) for s in image.ids]) if slot]
    for slot in wrong:
        del image.ids[slot]
    return len(wrong)


def _requests(
    wanted: Iterable[WantedChunk], put: Callable[[WantedChunk, Buffer], None]
) -> list[ChunkRequest]:
    """Return the chunks to read, each once, though several slots may have the same."""
    same: dict[tuple[bytes, int], list[WantedChunk]] = {}
    for want in wanted:
        same.setdefault(want.chunk.place, []).append(want)
    return [
        ChunkRequest(wants[0].chunk, wants[0].dtype, wants[0].name, partial(_put_all, wants, put))
        for wants in same.values()
    ]


def _put_all(
    wants: Iterable[WantedChunk], put: Callable[[WantedChunk, Buffer], None], raw: Buffer
) -> None:
    for want in wants:
        put(want, raw)


def _in_threads(jobs: Sequence[Callable[[], T]]) -> list[T]:
    if not jobs:
        return []
    with ThreadPoolExecutor(THREADS, "follow") as pool:
        return list(pool.map(lambda job: job(), jobs))
