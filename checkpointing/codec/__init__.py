"""Codecs of chunks: exact for every bit pattern, fast enough to stay ahead of a network."""

from checkpointing.codec.budget import Budget, Outlook, may_encode
from checkpointing.codec.chooser import Chooser
from checkpointing.codec.choosing import Measured, Way, choose
from checkpointing.codec.coding import decode, encode
from checkpointing.codec.encoder import Encoded, Encoder
from checkpointing.codec.layout import Codec, Layout
from checkpointing.codec.stats import Stats, Total

__all__ = [
    "Budget",
    "Chooser",
    "Codec",
    "Encoded",
    "Encoder",
    "Layout",
    "Measured",
    "Outlook",
    "Stats",
    "Total",
    "Way",
    "choose",
    "decode",
    "encode",
    "may_encode",
]
