"""The step phases, by their names in step records."""

from __future__ import annotations

from typing import Literal, get_args

Part = Literal[
    "data_wait",
    "host_to_device",
    "forward",
    "backward",
    "compute",  # forward and backward interleaved, as in a pipeline
    "optimizer",
    "checkpoint_stall",
    "certification",  # checks of computations at save steps
    "validation",
    "other",
]
PARTS: tuple[Part, ...] = get_args(Part)
NAMES = tuple(f"{part}_s" for part in PARTS)
"""Names of the fields with the seconds of each phase."""
