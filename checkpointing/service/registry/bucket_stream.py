"""The stream of one rank's state through buckets: some are read while others are filled."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import ServiceError
from checkpointing.format.element_types import element
from checkpointing.service.save_errors import ImpossibleSaveError
from checkpointing.service.snapshots import RankSnapshot, SlotBox, grids
from checkpointing.staging.buckets import BucketPart, divide
from checkpointing.store.write.part_writer import TensorPiece

BUCKET_TIMEOUT_S = (
    300.0  # seconds without a bucket from the trainer, after which a state counts as lost
)
_POLL_S = 0.1  # seconds between looks at whether the state is still wanted

SendMessage = Callable[..., None]  # called as send(kind, rank=, **fields); never blocks


class BucketStream:
    """One rank's state on its way through buckets. The trainer reports each full bucket, the worker
    reads them in that order and releases those that it needs no longer. The layout says what lies
    where in a bucket. Thread-safe.

    Args:
        memory: all buckets, uint8[buckets * bucket_bytes].
        send: sends messages: "emptied" to all trainers of the node, because a trainer that waits
            for its turn has to know that others make progress; "unread", with the reason, to this
            rank's trainer.
    """

    def __init__(
        self,
        snapshot: RankSnapshot,
        memory: NDArray[np.uint8],
        bucket_bytes: int,
        send: SendMessage,
    ) -> None:
        self._snapshot, self._layout, self._send = snapshot, snapshot.layout, send
        self._memory, self._bucket_bytes = memory, bucket_bytes
        self._contents = list(divide(grids(self._layout), bucket_bytes)) if memory.size else []
        self._changed = threading.Condition()
        self._full: deque[int] = deque()  # buckets that are not read yet
        # buckets being processed, and the byte count at which each ends
        self._processing: deque[tuple[int, int]] = deque()
        self._filled = self._bytes = self._done = 0  # buckets filled; bytes read; bytes done
        self._last_bucket_s = time.monotonic()
        self._why: str | None = None  # why it cannot be read any further
        self._is_begun = False

    @classmethod
    def gone(cls, snapshot: RankSnapshot, send: SendMessage) -> BucketStream:
        """Return a stream that an earlier process of the service was reading: nobody knows how far
        it had come."""
        stream = cls(snapshot, np.empty(0, np.uint8), 0, send)
        stream._why = "the service that was reading it died"
        return stream

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing, so that the trainer is not needed any more."""
        return self._why is None and self._filled == len(self._contents)

    @property
    def is_begun(self) -> bool:
        """Whether some of it was read, so that it cannot be read from the start again."""
        return self._is_begun

    def fill(self, number: int, bucket: int, size: int) -> None:
        """Record that a bucket is full.

        Args:
            number: of the part of the content in it, counted from 0.
            size: bytes of the content.

        Raises:
            ServiceError: the bucket cannot hold that part, or the stream has ended.
        """
        with self._changed:
            if self._why is not None:
                raise ServiceError(f"step {self._snapshot.step}: {self._why}")
            taken = {*self._full, *(bucket for bucket, _ in self._processing)}
            is_bucket = 0 <= bucket < self._memory.size // self._bucket_bytes
            is_next = number == self._filled < len(self._contents)
            if not is_bucket or bucket in taken or not is_next or size != self._size(number):
                raise ServiceError(
                    f"bucket {bucket} cannot hold part {number} ({size} bytes) of step "
                    f"{self._snapshot.step}: {len(self._contents)} parts, of which {self._filled} "
                    "have arrived"
                )
            self._full.append(bucket)
            self._filled += 1
            self._last_bucket_s = time.monotonic()
            self._changed.notify_all()

    def pieces(self, given_up: Callable[[], bool]) -> Iterator[TensorPiece | None]:
        """Yield the state piece by piece as it comes, and None when no more is there at the moment.

        Args:
            given_up: returns whether to stop waiting.

        Raises:
            ImpossibleSaveError: the state will not be complete, or some of it was read before.
        """
        if self._is_begun:
            raise self._lost("it has already been read and removed")
        self._is_begun = True
        for parts, offsets in self._contents:
            while (bucket := self._next()) is None:
                yield None
                self._wait(given_up)
            start = bucket * self._bucket_bytes
            for part, offset in zip(parts, offsets, strict=True):
                yield _piece(self._layout.places[part.piece], part, self._memory[start + offset :])
            self.done(0)
        if self._why is not None:
            raise self._lost(self._why)

    def done(self, size: int) -> None:
        """Record that `size` more bytes, in the order of the pieces, are needed no longer."""
        emptied = []
        with self._changed:
            self._done += size
            while self._processing and self._processing[0][1] <= self._done:
                emptied.append(self._processing.popleft()[0])
        for bucket in emptied:
            step, rank = self._snapshot.step, self._snapshot.rank
            self._send("emptied", step=step, of=rank, bucket=bucket)

    def end(self, why: str) -> None:
        """End the stream because it is not read further or nothing more comes; does nothing if all
        of it was read."""
        with self._changed:
            is_over = (
                self._filled == len(self._contents) and not self._full and not self._processing
            )
            if is_over or self._why is not None:
                return
            self._why = why
            self._changed.notify_all()
        self._send("unread", rank=self._snapshot.rank, step=self._snapshot.step, error=why)

    def _next(self) -> int | None:
        """Return the bucket to read now; None if there is none yet."""
        with self._changed:
            if self._why is not None:
                raise self._lost(self._why)
            if not self._full:
                return None
            bucket = self._full.popleft()
            self._bytes += self._size(self._filled - len(self._full) - 1)
            self._processing.append((bucket, self._bytes))
            return bucket

    def _wait(self, given_up: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._full or self._why is not None, _POLL_S)
            silent_s = time.monotonic() - self._last_bucket_s
            is_late = not self._full and silent_s > BUCKET_TIMEOUT_S
        if given_up():
            raise self._lost("no process waits for it any longer")
        if is_late:
            raise self._lost(f"its trainer has sent nothing for {silent_s:.0f} s")

    def _size(self, number: int) -> int:
        """Return the bytes of a bucket's content."""
        places = self._layout.places
        parts, _ = self._contents[number]
        return sum(p.box.count * element(places[p.piece].dtype).itemsize for p in parts)

    def _lost(self, why: str) -> ImpossibleSaveError:
        return ImpossibleSaveError(
            f"step {self._snapshot.step} of rank {self._snapshot.rank} is lost completely: {why}"
        )


def _piece(place: SlotBox, part: BucketPart, memory: NDArray[np.uint8]) -> TensorPiece:
    """Return a part of a box as a tensor piece; the part starts where `memory` does."""
    kind = element(place.dtype)
    data = memory[: part.box.count * kind.itemsize].view(kind.bits).reshape(part.box.sizes)
    pairs = zip(place.offsets, part.box.offsets, strict=True)
    return TensorPiece(place.name, place.dtype, place.shape, tuple(a + b for a, b in pairs), data)


def is_torn(stream: BucketStream | None) -> bool:
    """Return whether something is missing that cannot come once the trainer is gone."""
    return stream is not None and not stream.is_whole
