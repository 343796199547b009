"""Chooses how each new chunk is stored: with which codec, and relative to which base."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from checkpointing import codec
from checkpointing.codec import (
    AdaptiveEncoder,
    Codec,
    EncodeBudget,
    WordLayout,
    decode,
    is_constant,
    is_store_faster,
)
from checkpointing.errors import DamagedError
from checkpointing.format.chunks import MAX_DEPTH, Chunk
from checkpointing.format.element_types import ElementType
from checkpointing.storage import Buffer

logger = logging.getLogger("checkpointing")

MOST_CYCLES = 1 << 20  # most bases that are remembered
SMALL = 256  # bytes; a smaller chunk is stored raw: a codec would save less than its rows take
# one in so many chunks of each kind, beginning with the first, is decoded again for a check
CHECK_EVERY = 64

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class EncodedChunk:
    """The stored bytes of a chunk, and how to read them."""

    stored: Buffer
    codec: Codec
    base: Chunk | None = None


@dataclass(frozen=True)
class ChunkEncoder:
    """Encodes the chunks of saves. Thread-safe.

    Attributes:
        encoder: chooses by measured samples; None: everything is stored raw.
        depth: most bases that a reader has to decode before a chunk, at least 1. At 1 the base is
            always a keyframe, a chunk without a base. A larger depth stores less, and reads more,
            at a restore and at each save: benchmarks/README.md says how much.

    Raises:
        ValueError: `depth` is out of range.
    """

    encoder: AdaptiveEncoder | None = field(default_factory=AdaptiveEncoder)
    depth: int = 1
    _checks: _DecodeChecks = field(default_factory=lambda: _DecodeChecks())
    _cycles: _BaseLifetimes = field(default_factory=lambda: _BaseLifetimes())

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= MAX_DEPTH:
            raise ValueError(
                f"ChunkEncoder(depth=) must be from 1 to {MAX_DEPTH}, got {self.depth!r}; "
                "ChunkEncoder(encoder=None) stores everything raw"
            )

    def reads(self, name: str, dtype: str, before: Chunk) -> Chunk | None:
        """Return the base that `encode` will probably ask for, so that it can be read ahead."""
        if self.encoder is None or before.raw_length < SMALL:
            return None
        if not self.encoder.chooser.wants_base(kind_of(name, dtype)):
            return None
        return base_of(before, self.depth)

    def expects_raw(self, budget: EncodeBudget | None) -> bool:
        """Return whether nearly all chunks will be stored raw from now on."""
        if self.encoder is None:
            return True
        return budget is not None and is_store_faster(budget.outlook())

    def leaves_raw(self, raw: Buffer, element: ElementType, budget: EncodeBudget | None) -> bool:
        """Return whether a chunk is stored raw. If not, `encode` is to be called for it, with
        `is_allowed`."""
        if self.encoder is None or len(raw) < SMALL:
            return True
        if is_constant(raw, element.word) or budget is None or budget.allows(len(raw)):
            return False
        self.encoder.stats.add(Codec.RAW, len(raw), len(raw), 0.0)
        return True

    def encode(
        self,
        raw: Buffer,
        name: str,
        element: ElementType,
        row: int,
        before: Chunk | None,
        read: Callable[[Chunk], Buffer],
        budget: EncodeBudget | None = None,
        *,
        is_allowed: bool | None = None,
    ) -> EncodedChunk:
        """Return the stored form of a chunk.

        Args:
            name: name of its tensor.
            row: bytes per row.
            before: the chunk that the last checkpoint has in this place.
            read: returns the content of a chunk of the store, checked.
            budget: budget of the save.
            is_allowed: whether the budget allows to encode it; None: it is asked.
        """
        if self.encoder is None or len(raw) < SMALL:
            return EncodedChunk(raw, Codec.RAW)
        kind = kind_of(name, element.name)
        if is_allowed is None:
            is_allowed = budget is None or budget.allows(len(raw))
        base, content = None, None
        if (
            is_allowed
            and before is not None
            and self.encoder.chooser.wants_base(kind)
            and not is_constant(raw, element.word)
        ):
            base = base_of(before, self.depth)
        if base is not None and base.raw_length == len(raw):
            content = _content(base, read)
        layout = WordLayout(element.word, element.is_float, row)
        found = self.encoder.encode(kind, raw, layout, content, budget, is_allowed=is_allowed)
        while found.on_base and base is not None and self._cycles.is_over(base, len(found.data)):
            base = self._cycles.older(base, len(found.data))
            content = None if base is None else _content(base, read)
            found = self.encoder.encode(kind, raw, layout, content, budget)
        if found.on_base and base is not None:
            self._cycles.add(base, len(found.data))
        if self._checks.is_due(kind, found.codec) and not _is_exact(found, raw, layout, content):
            logger.error(
                "codec %s does not reproduce %r exactly, so it is stored raw",
                found.codec.name,
                name,
            )
            return EncodedChunk(raw, Codec.RAW)
        return EncodedChunk(found.data, found.codec, base if found.on_base else None)


class _BaseLifetimes:
    """Decides when a base is replaced: as soon as a delta to it is larger than the mean of all that
    was stored in its place since, itself included. Keeping it would raise that mean. Then the
    base's own base, if it has one, is considered, and last of all a new keyframe is stored."""

    def __init__(self) -> None:
        self._stored: dict[bytes, tuple[int, int]] = {}  # base -> bytes, chunks
        self._lock = threading.Lock()

    def is_over(self, base: Chunk, delta: int) -> bool:
        """Return whether a delta of so many bytes is too large; always False for the first one."""
        with self._lock:
            total, count = self._stored.get(base.id, (base.length, 1))
            return count > 1 and delta * count > total

    def older(self, base: Chunk, delta: int) -> Chunk | None:
        """Return the nearest base below `base` that is not to be replaced, for a delta of at least
        `delta` bytes; None if there is none, so that a new keyframe is stored."""
        with self._lock:
            self._stored.pop(base.id, None)
        older = base.base
        while older is not None and self.is_over(older, delta):
            older = older.base
        return older

    def add(self, base: Chunk, delta: int) -> None:
        """Record that a delta of so many bytes was stored."""
        with self._lock:
            total, count = self._stored.get(base.id, (base.length, 1))
            if len(self._stored) >= MOST_CYCLES:
                self._stored.clear()  # most of them belong to tensors that no longer exist
            self._stored[base.id] = (total + delta, count + 1)


class _DecodeChecks:
    """Chooses which chunks are decoded again, so that no defect of a codec goes unnoticed for
    months."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, Codec]] = Counter()
        self._lock = threading.Lock()

    def is_due(self, kind: str, codec: Codec) -> bool:
        if codec is Codec.RAW:
            return False
        with self._lock:
            self._seen[kind, codec] += 1
            return self._seen[kind, codec] % CHECK_EVERY == 1


def _is_exact(
    found: codec.EncoderResult, raw: Buffer, layout: WordLayout, base: Buffer | None
) -> bool:
    out = bytearray(len(raw))
    try:
        decode(found.codec, found.data, memoryview(out), layout, base if found.on_base else None)
    except DamagedError:
        return False
    return out == raw


def kind_of(name: str, dtype: str) -> str:
    """Return the kind of a tensor: tensors of all layers that compress alike have the same kind,
    "model/layers..mlp.weight/float32"."""
    return f"{_NUMBER.sub('', name)}/{dtype}"


def base_of(before: Chunk, depth: int) -> Chunk | None:
    """Return the base of a chunk in this place: the last chunk there, or the nearest of its bases
    that does not itself have too many bases."""
    base: Chunk | None = before
    while base is not None and base.depth >= depth:
        base = base.base
    return base


def _content(base: Chunk, read: Callable[[Chunk], Buffer]) -> Buffer | None:
    try:
        return read(base)
    except DamagedError as error:
        logger.warning("a damaged chunk is not used as a base: %s", error)
        return None
