"""Encodes chunks in the way that saves most, given their content, their kind and the time left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from checkpointing.codec.algorithms.constant_words import is_constant
from checkpointing.codec.chunk_codec import encode
from checkpointing.codec.selection.codec_choice import CodecChoice, CodecChooser
from checkpointing.codec.selection.codec_stats import CodecStats
from checkpointing.codec.selection.encode_budget import EncodeBudget
from checkpointing.codec.word_layout import Codec, WordLayout
from checkpointing.storage.interface import Buffer


@dataclass(frozen=True)
class EncoderResult:
    """A chunk as it is to be stored."""

    codec: Codec
    data: Buffer
    on_base: bool  # whether the base is needed to decode it


@dataclass(frozen=True)
class AdaptiveEncoder:
    """Encodes the chunks of saves. Thread-safe.

    Attributes:
        chooser: chooses codecs, with measurements over all saves.
        stats: statistics over all saves.
    """

    chooser: CodecChooser = field(default_factory=CodecChooser)
    stats: CodecStats = field(default_factory=CodecStats)

    def encode(
        self,
        kind: str,
        raw: Buffer,
        layout: WordLayout,
        base: Buffer | None = None,
        budget: EncodeBudget | None = None,
        *,
        is_allowed: bool = True,
    ) -> EncoderResult:
        """Returns `raw` in the form that saves most; never larger than `raw`.

        Args:
            kind: tensors that compress alike, such as "optim/exp_avg/float32".
            base: as for `checkpointing.codec.encode`. See `CodecChooser.wants_base`.
            budget: learns how long it took; None: nobody does.
            is_allowed: whether there is time to encode, as `EncodeBudget.allows`; words that are
                all equal are stored as one in any case.

        Raises:
            ValueError: as `checkpointing.codec.encode`.
        """
        begun = time.perf_counter()
        way = self._way(kind, raw, layout, base, is_allowed=is_allowed)
        data = encode(way.codec, raw, layout, base if way.on_base else None)
        if len(data) >= len(raw):
            way, data = CodecChoice(Codec.RAW), raw
        seconds = time.perf_counter() - begun
        self.stats.add(way.codec, len(raw), len(data), seconds)
        if budget is not None and way.codec not in (Codec.RAW, Codec.CONSTANT):
            budget.encoded(len(raw), len(data), seconds)
        return EncoderResult(way.codec, data, way.on_base)

    def _way(
        self,
        kind: str,
        raw: Buffer,
        layout: WordLayout,
        base: Buffer | None,
        *,
        is_allowed: bool,
    ) -> CodecChoice:
        if is_constant(raw, layout.word):
            return CodecChoice(Codec.CONSTANT)
        if not is_allowed:
            return CodecChoice(Codec.RAW)
        return self.chooser.way(kind, raw, layout, base)
