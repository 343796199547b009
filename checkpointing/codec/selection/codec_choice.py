"""Chooses the best way to store chunks of one kind: a pure function of measured samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from checkpointing.codec.word_layout import Codec


class CodecChoice(NamedTuple):
    """A codec, and whether it is relative to a base."""

    codec: Codec
    on_base: bool = False


RAW = CodecChoice(Codec.RAW)
PLANES = CodecChoice(Codec.PLANES)
ROWS = CodecChoice(Codec.ROWS)
ZSTD = CodecChoice(Codec.ZSTD)
ROWS_ON_BASE = CodecChoice(Codec.ROWS, on_base=True)
DELTA = CodecChoice(Codec.DELTA, on_base=True)
GROUPS = CodecChoice(Codec.GROUPS, on_base=True)

# tried in this order, each against the best of those before it, by how much less it has to store. A
# choice with a base costs every reader the base too, and keeps it from being pruned
GAINS: Mapping[CodecChoice, float] = {
    RAW: 0.0,
    PLANES: 0.03,
    ROWS: 0.03,
    ZSTD: 0.03,
    ROWS_ON_BASE: 0.04,
    DELTA: 0.02,
    GROUPS: 0.02,
}
WORTH = 5e6  # bytes that an additional second of encoding must save, on one core


_HALVING_BYTES = 128 << 10  # sampled bytes after which an older measurement has half its weight


@dataclass(frozen=True)
class CodecMeasurement:
    """How one choice did on samples of a kind."""

    raw: float  # bytes
    stored: float  # bytes
    seconds: float  # seconds of encoding on one core

    @property
    def share(self) -> float:
        """Stored bytes per raw byte."""
        return self.stored / self.raw

    @property
    def cost(self) -> float:
        """Seconds per raw byte."""
        return self.seconds / self.raw

    def then(self, newer: CodecMeasurement) -> CodecMeasurement:
        """Returns this combined with a newer sample, beside which this fades; weighted by size, so
        that a small sample does not outweigh a large one."""
        kept = 0.5 ** (newer.raw / _HALVING_BYTES)
        return CodecMeasurement(
            kept * self.raw + newer.raw,
            kept * self.stored + newer.stored,
            kept * self.seconds + newer.seconds,
        )


def choose(
    measured: Mapping[CodecChoice, CodecMeasurement], *, with_base: bool = True
) -> CodecChoice:
    """Returns the choice that saves most; RAW if none does or nothing is known.

    Args:
        with_base: whether there is a base.
    """
    best, share, cost = RAW, 1.0, 0.0
    for way, gain in GAINS.items():
        this = measured.get(way)
        if this is None or (way.on_base and not with_base):
            continue
        saved = share - this.share
        enough = saved > 0 and saved >= gain * share
        if enough and saved >= WORTH * (this.cost - cost):
            best, share, cost = way, this.share, this.cost
    return best
