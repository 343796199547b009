"""The size of the pieces in which an object is streamed.

Each piece costs its thread a turn with the interpreter's lock, for which all threads that download,
wait or decode compete: small ones slow down many downloads at a time. Large ones come late. So a
piece is what comes in a few milliseconds.
"""

LEAST = 1 << 16
"""Bytes of a piece until the rate of any stream is known, and after a stream broke: so many are
lost or late at most."""
MOST = 1 << 20
_PIECE_S = 0.004
_KEPT = 0.75  # the weight of what came before the newest piece


def piece_bytes(rate: float | None, *, broke: bool) -> int:
    """Return the bytes of each piece of the next stream, a power of two.

    Args:
        rate: bytes per second of one stream; None: it is not known.
        broke: a stream broke, and none has ended well since.
    """
    if broke or rate is None:
        return LEAST
    wanted = int(min(MOST, max(LEAST, rate * _PIECE_S)))
    return 1 << wanted.bit_length() - 1


class PieceSize:
    """Chooses the size of pieces by the rate of the streams of one kind of source so far. Threads
    may share it: what one of them notes may get lost, and the next piece is noted again."""

    def __init__(self) -> None:
        self._seen = (0.0, 0.0)
        """Bytes and seconds of the last pieces, each weighted: their quotient is the rate also
        where bytes come in bursts, of which most pieces are not waited for."""
        self._broke = False

    def next(self) -> int:
        """Return the bytes of each piece of the next stream."""
        size, seconds = self._seen
        return piece_bytes(size / seconds if seconds else None, broke=self._broke)

    def came(self, size: int, seconds: float) -> None:
        """Note that a piece of `size` bytes was waited for."""
        before_bytes, before_s = self._seen
        self._seen = (_KEPT * before_bytes + size, _KEPT * before_s + max(seconds, 1e-6))

    def ended(self, *, well: bool) -> None:
        """Note the end of a stream."""
        self._broke = not well
