"""Encodes chunks as it pays: by what they hold, by their kind, by the time there is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from checkpointing.codec.budget import Budget
from checkpointing.codec.chooser import Chooser
from checkpointing.codec.choosing import Way
from checkpointing.codec.coding import encode
from checkpointing.codec.constant import is_constant
from checkpointing.codec.frames import FAST
from checkpointing.codec.layout import Codec, Layout
from checkpointing.codec.stats import Stats
from checkpointing.storage.interface import Buffer


@dataclass(frozen=True)
class Encoded:
    """A chunk as it is to be stored."""

    codec: Codec
    data: Buffer
    on_base: bool  # the base is needed to decode it


@dataclass(frozen=True)
class Encoder:
    """Encodes the chunks of saves. Thread-safe.

    Attributes:
        chooser: what pays, over all saves.
        level: zstd's.
        stats: what was done, over all saves.
    """

    chooser: Chooser = field(default_factory=Chooser)
    level: int = FAST
    stats: Stats = field(default_factory=Stats)

    def encode(
        self,
        kind: str,
        raw: Buffer,
        layout: Layout,
        base: Buffer | None = None,
        budget: Budget | None = None,
    ) -> Encoded:
        """`raw` in the way that pays; never larger than it is.

        Args:
            kind: tensors that compress alike, such as "optim/exp_avg/float32".
            base: as for `checkpointing.codec.encode`. See `Chooser.wants_base`.
            budget: of the save that the chunk is part of; none: take the time.

        Raises:
            ValueError: as `checkpointing.codec.encode`.
        """
        begun = time.perf_counter()
        way = self._way(kind, raw, layout, base, budget)
        data = encode(way.codec, raw, layout, base if way.on_base else None, self.level)
        if len(data) >= len(raw):
            way, data = Way(Codec.RAW), raw
        seconds = time.perf_counter() - begun
        self.stats.add(way.codec, len(raw), len(data), seconds)
        if budget is not None and way.codec not in (Codec.RAW, Codec.CONSTANT):
            budget.encoded(len(raw), len(data), seconds)
        return Encoded(way.codec, data, way.on_base)

    def _way(
        self, kind: str, raw: Buffer, layout: Layout, base: Buffer | None, budget: Budget | None
    ) -> Way:
        if is_constant(raw, layout.word):
            return Way(Codec.CONSTANT)
        if budget is not None and not budget.allows(len(raw)):
            return Way(Codec.RAW)
        return self.chooser.way(kind, raw, layout, base)
