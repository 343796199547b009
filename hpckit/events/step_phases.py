"""The parts that a step is split into, as its records name them."""

from __future__ import annotations

from typing import Literal, get_args

Part = Literal[
    "data_wait",
    "host_to_device",
    "forward",
    "backward",
    "compute",  # forward and backward in turns, as in a pipeline
    "optimizer",
    "checkpoint_stall",
    "validation",
    "other",
]
PARTS: tuple[Part, ...] = get_args(Part)
NAMES = tuple(f"{part}_s" for part in PARTS)
"""Of the seconds of each in a record."""
