"""Codecs of chunks, which are exact for every bit pattern and faster than a network."""

from checkpointing.codec.algorithms.constant_words import is_constant
from checkpointing.codec.chunk_codec import decode, encode
from checkpointing.codec.selection.adaptive_encoder import AdaptiveEncoder, EncoderResult
from checkpointing.codec.selection.codec_choice import (
    CodecChoice,
    CodecChooser,
    CodecMeasurement,
    choose_codec,
)
from checkpointing.codec.selection.codec_stats import CodecStats, CodecTotal
from checkpointing.codec.selection.encode_budget import (
    EncodeBudget,
    EncodeOutlook,
    is_store_faster,
    may_encode,
)
from checkpointing.codec.word_layout import Codec, WordLayout

__all__ = [
    "AdaptiveEncoder",
    "Codec",
    "CodecChoice",
    "CodecChooser",
    "CodecMeasurement",
    "CodecStats",
    "CodecTotal",
    "EncodeBudget",
    "EncodeOutlook",
    "EncoderResult",
    "WordLayout",
    "choose_codec",
    "decode",
    "encode",
    "is_constant",
    "is_store_faster",
    "may_encode",
]
