"""Downloading one object by several ranges at a time, whose bytes come in order.

One connection to an object store brings less than the network does (AWS advises a request for each
85 to 90 MB/s, in "Performance design patterns for Amazon S3"), and a reader that waits for one
shard waits for one connection. The first bytes come alone, as a first
batch waits for them; from then on, as many ranges are read at a time as the host has connections to
spare.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import TypeAlias

FIRST_BYTES = 4 << 20
"""Bytes that are read before further ranges are."""
LEAST_BYTES = 1 << 20
"""Bytes of a range: a shorter one takes the server longer to begin than to send."""
MOST_BYTES = 8 << 20
"""Bytes of a range, which are held in memory until those before them have come."""

ByteRange: TypeAlias = tuple[int, int]


class NoThreadError(Exception):
    """The process can start no further thread."""


def cut_ranges(start: int, size: int, count: int) -> list[ByteRange]:
    """Divide the bytes from `start` to `size` into the ranges (begin, end) in which they are read;
    one range: they are not worth more.

    Args:
        count: the ranges that are read at a time.
    """
    rest = size - start - FIRST_BYTES
    if count < 2 or rest < 2 * LEAST_BYTES:
        return [(start, size)]
    each = min(MOST_BYTES, max(LEAST_BYTES, -(-rest // count)))
    begins = range(start + FIRST_BYTES, size, each)
    return [(start, begins[0]), *((begin, min(size, begin + each)) for begin in begins)]


def read_in_order(
    ranges: Sequence[ByteRange],
    read: Callable[[ByteRange], Iterator[bytes]],
    read_beside: Callable[[ByteRange], "RangeAhead | None"],
    count: int,
) -> Iterator[bytes]:
    """Yield the bytes of ranges that lie one after the other, from the second on of up to `count`
    at a time. Raises what reading the next range in line raises.

    Args:
        read: yields the bytes of a range.
        read_beside: begins to read a range in a thread; None if that is not possible now.
    """
    yield from read(ranges[0])
    waiting, coming = deque(ranges[1:]), deque[RangeAhead]()
    try:
        while waiting or coming:
            while waiting and len(coming) < count and (one := read_beside(waiting[0])) is not None:
                coming.append(one)
                waiting.popleft()
            if coming:
                yield from coming[0].pieces()
                coming.popleft().close()
            else:
                yield from read(waiting.popleft())
    finally:
        for one in coming:
            one.close()


class RangeAhead:
    """A range that a thread of its own reads before its bytes are needed.

    Args:
        pieces: yields its bytes; used by that thread alone.
        closed: called once by `close`, when nobody needs the bytes any more.

    Raises NoThreadError.
    """

    def __init__(self, pieces: Iterator[bytes], closed: Callable[[], object]) -> None:
        self._come: SimpleQueue[bytes | BaseException | None] = SimpleQueue()
        self._closed, self._is_closed = closed, False
        thread = threading.Thread(
            target=self._read, args=(pieces,), name="hpckit-range", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise NoThreadError from error

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes as they come. Raises what reading them has raised."""
        while (piece := self._come.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    def close(self) -> None:
        """Have the thread stop at its next piece."""
        self._is_closed = True
        self._closed()

    def _read(self, pieces: Iterator[bytes]) -> None:
        end: BaseException | None = None
        try:
            for piece in pieces:
                if self._is_closed:
                    return
                self._come.put(piece)
        except BaseException as error:  # noqa: BLE001 (raised by `pieces`, in the thread that waits)
            end = error
        self._come.put(end)
