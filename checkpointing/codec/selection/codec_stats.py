"""Statistics of encoding by codec: bytes in, bytes out and time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from checkpointing.codec.word_layout import Codec


@dataclass(frozen=True)
class CodecTotal:
    """Sums over chunks."""

    chunks: int = 0
    raw: int = 0  # bytes
    stored: int = 0  # bytes
    seconds: float = 0.0  # seconds of encoding, over all threads

    def plus(self, other: CodecTotal) -> CodecTotal:
        return CodecTotal(
            self.chunks + other.chunks,
            self.raw + other.raw,
            self.stored + other.stored,
            self.seconds + other.seconds,
        )


class CodecStats:
    """Totals by codec. Thread-safe."""

    def __init__(self) -> None:
        self._totals: dict[Codec, CodecTotal] = {}
        self._lock = threading.Lock()

    def add(self, codec: Codec, raw: int, stored: int, seconds: float) -> None:
        """Add one chunk of `raw` bytes that became `stored` bytes in so many seconds."""
        with self._lock:
            before = self._totals.get(codec, CodecTotal())
            self._totals[codec] = before.plus(CodecTotal(1, raw, stored, seconds))

    def by_codec(self) -> Mapping[Codec, CodecTotal]:
        """Returns the present totals of the codecs that were used."""
        with self._lock:
            return MappingProxyType(dict(self._totals))

    def total(self) -> CodecTotal:
        """Returns the total over all codecs."""
        found = CodecTotal()
        for total in self.by_codec().values():
            found = found.plus(total)
        return found
