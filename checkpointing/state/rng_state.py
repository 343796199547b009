"""Captures and restores the random number generators of a process: Python's, numpy's, torch's, and
that of its CUDA device."""

from __future__ import annotations

import base64
import random
import struct
from typing import Any

import numpy as np
import torch

from checkpointing.state.packed_values import pack, unpack

_MERSENNE = struct.Struct("<625I")  # Python's generator: its words and its position


def capture() -> dict[str, Any]:
    """Returns the states of the generators as plain values, about 14 KB."""
    version, words, gauss = random.getstate()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {
        "python": [version, base64.b64encode(_MERSENNE.pack(*words)).decode(), gauss],
        "numpy": pack(np.random.get_state(), "numpy"),
        "torch": pack(torch.get_rng_state(), "torch"),
        "cuda": pack(cuda, "cuda"),
    }


def restore(states: dict[str, Any]) -> None:
    """Set the generators to the states that `capture` returned."""
    version, words, gauss = states["python"]
    random.setstate((version, _MERSENNE.unpack(base64.b64decode(words)), gauss))
    np.random.set_state(unpack(states["numpy"]))
    torch.set_rng_state(unpack(states["torch"]))
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(unpack(states["cuda"]))
