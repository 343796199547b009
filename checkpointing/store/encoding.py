"""How each new chunk is stored: which codec, and relative to which base."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from checkpointing import codec
from checkpointing.codec import Budget, Codec, Encoder, Layout, decode
from checkpointing.errors import DamagedError
from checkpointing.format.chunks import Chunk
from checkpointing.format.elements import Element
from checkpointing.format.manifest import item_of
from checkpointing.storage import Buffer

logger = logging.getLogger("checkpointing")

CHECK_EVERY = 64  # chunks of a kind: the first and then each so many-th is decoded again at once

_LAST = re.compile(r"[^./]*$")


@dataclass(frozen=True)
class Encoded:
    """A chunk's stored bytes, and how to read them."""

    stored: Buffer
    codec: Codec
    base: Chunk | None = None


@dataclass(frozen=True)
class ChunkEncoder:
    """Encodes the chunks of saves. Thread-safe.

    Attributes:
        encoder: chooses by measured samples; None: everything is stored raw.
        depth: bases that a reader may have to decode before a chunk. At 1 the base is always a
            keyframe, a chunk that stands alone.
    """

    encoder: Encoder | None = field(default_factory=Encoder)
    depth: int = 1
    _checks: _Checks = field(default_factory=lambda: _Checks())

    def encode(
        self,
        raw: Buffer,
        name: str,
        element: Element,
        row: int,
        before: Chunk | None,
        read: Callable[[Chunk], Buffer],
        budget: Budget | None = None,
    ) -> Encoded:
        """The stored form of a chunk.

        Args:
            name: of its tensor.
            row: bytes per row.
            before: the chunk that the last checkpoint has in this place.
            read: gives the content of a chunk of the store, checked.
            budget: of the save.
        """
        if self.encoder is None:
            return Encoded(raw, Codec.RAW)
        kind = kind_of(name, element.name)
        base, content = None, None
        if before is not None and self.encoder.chooser.wants_base(kind):
            base = base_of(before, self.depth)
        if base is not None and base.raw_length == len(raw):
            content = _content(base, read)
        layout = Layout(element.word, element.is_float, row)
        found = self.encoder.encode(kind, raw, layout, content, budget)
        if self._checks.is_due(kind, found.codec) and not _is_exact(found, raw, layout, content):
            logger.error("codec %s is not exact on %r: stored raw", found.codec.name, name)
            return Encoded(raw, Codec.RAW)
        return Encoded(found.data, found.codec, base if found.on_base else None)


class _Checks:
    """Which chunks are decoded again, so that no defect of a codec goes unnoticed for months."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, Codec]] = Counter()
        self._lock = threading.Lock()

    def is_due(self, kind: str, codec: Codec) -> bool:
        if codec is Codec.RAW:
            return False
        with self._lock:
            self._seen[kind, codec] += 1
            return self._seen[kind, codec] % CHECK_EVERY == 1


def _is_exact(found: codec.Encoded, raw: Buffer, layout: Layout, base: Buffer | None) -> bool:
    out = bytearray(len(raw))
    try:
        decode(found.codec, found.data, memoryview(out), layout, base if found.on_base else None)
    except DamagedError:
        return False
    return out == raw


def kind_of(name: str, dtype: str) -> str:
    """Tensors that compress alike: "optimizer/exp_avg/float32"."""
    last = _LAST.search(name)
    return f"{item_of(name)}/{last.group() if last else ''}/{dtype}"


def base_of(before: Chunk, depth: int) -> Chunk | None:
    """What a chunk in this place is to be relative to: the last one, or the nearest of its bases
    that is not relative to too many others itself."""
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
