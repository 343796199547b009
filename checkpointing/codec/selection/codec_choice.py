"""Chooses how chunks are stored: which codec suits a kind of tensor, or none, is a pure function of
samples that are measured during a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from checkpointing.codec.chunk_codec import encode
from checkpointing.codec.word_layout import Codec, WordLayout
from checkpointing.storage.interface import Buffer


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
SAMPLE_BYTES = 128 << 10
_WINDOW = 8 << 10  # bytes that are taken together, if rows are not longer
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


def choose_codec(
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


@dataclass
class _Kind:
    measured: dict[CodecChoice, CodecMeasurement] = field(default_factory=dict)
    left: float = 0.0  # raw bytes until the next sample
    left_on_base: float = 0.0  # raw bytes until the next sample that has a base


class CodecChooser:
    """Chooses for chunks of a kind, such as "optim/exp_avg/float32". Thread-safe.

    The first chunk of a kind is sampled, and later ones so often that about `share` of the encoded
    bytes are samples. Newer samples count more, so that choices adapt as training continues.
    """

    def __init__(
        self,
        *,
        share: float = 0.05,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """
        Args:
            share: share of the bytes that are sampled.
            clock: clock for the cost of encoding; the CPU time of a thread does not depend on the
                load.
        """
        self._share, self._clock = share, clock
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()

    def wants_base(self, kind: str) -> bool:
        """Whether the next chunk of the kind should be passed with its base, to be stored relative
        to it or to measure whether that saves space."""
        with self._lock:
            state = self._kinds.setdefault(kind, _Kind())
            return state.left_on_base <= 0 or choose_codec(state.measured).on_base

    def way(
        self, kind: str, raw: Buffer, layout: WordLayout, base: Buffer | None = None
    ) -> CodecChoice:
        """Returns how to store this chunk, relative to a base only if there is one. Takes a sample
        if one is due."""
        if self._due(kind, len(raw), base is not None):
            self._learn(kind, _measure(raw, layout, base, self._clock))
        with self._lock:
            measured = self._kinds[kind].measured
            # another thread is taking the first sample
            return choose_codec(measured, with_base=base is not None) if measured else PLANES

    def measured(self) -> Mapping[str, Mapping[CodecChoice, CodecMeasurement]]:
        """Returns the measurements so far, by kind."""
        with self._lock:
            return {kind: dict(state.measured) for kind, state in self._kinds.items()}

    def _due(self, kind: str, size: int, with_base: bool) -> bool:
        with self._lock:
            state = self._kinds.setdefault(kind, _Kind())
            state.left -= size
            state.left_on_base -= size
            due = state.left_on_base < 0 if with_base else state.left < 0
            if due:  # immediately, so that no other thread samples, too
                state.left = min(size, SAMPLE_BYTES) * len(GAINS) / self._share
                state.left_on_base = state.left if with_base else state.left_on_base
            return due

    def _learn(self, kind: str, found: Mapping[CodecChoice, CodecMeasurement]) -> None:
        with self._lock:
            known = self._kinds[kind].measured
            for way, this in found.items():
                known[way] = known[way].then(this) if way in known else this


def _measure(
    raw: Buffer, layout: WordLayout, base: Buffer | None, clock: Callable[[], float]
) -> dict[CodecChoice, CodecMeasurement]:
    """Measure every choice on a part of the chunk."""
    part = sample(raw, layout)
    before = None if base is None else sample(base, layout)
    found: dict[CodecChoice, CodecMeasurement] = {}
    for way in _candidates(part, layout, before is not None):
        begun = clock()
        stored = encode(way.codec, part, layout, before if way.on_base else None)
        found[way] = CodecMeasurement(len(part), len(stored), clock() - begun)
    return found


def _candidates(part: Buffer, layout: WordLayout, with_base: bool) -> list[CodecChoice]:
    if not len(part):
        return []
    left_out = {RAW.codec}
    if len(part) % layout.row:
        left_out.add(Codec.ROWS)
    if not layout.is_float or layout.word != 2:
        left_out.add(Codec.GROUPS)  # for wider words it saves half as much, in twice the time
    return [way for way in GAINS if way.codec not in left_out and (with_base or not way.on_base)]


def sample(raw: Buffer, layout: WordLayout) -> bytes:
    """Returns about 128 KiB of whole rows in windows spread evenly over `raw`; all of it if it is
    not larger than twice that, or than twice a row. The places are the same for equal lengths and
    layouts."""
    if len(raw) <= 2 * max(SAMPLE_BYTES, layout.row) or len(raw) % layout.row:
        return bytes(raw)
    window = max(_WINDOW // layout.row, 1) * layout.row
    windows = max(SAMPLE_BYTES // window, 1)
    stride = len(raw) // windows // layout.row * layout.row
    spread = np.frombuffer(raw, np.uint8, windows * stride).reshape(windows, stride)
    return spread[:, :window].tobytes()
