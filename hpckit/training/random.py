"""Randomness as a function of (seed, step, rank): nothing of it has to be saved or restored."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed the generators of this process for step `step`.

    So a resumed run draws what the uninterrupted one would have drawn.
    """
    seed_all(mix(seed, step, rank))


def seed_all(seed: int) -> None:
    """Those of torch, for the CPU and the GPU in use, of numpy and of Python; `seed` has 64 bits.

    As torch.manual_seed, which takes most of a millisecond: it turns to every kind of device that
    there might be, and formats the stack for each that is not in use.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def mix(*words: int | str) -> int:
    """64 bits that depend on all of `words` and on their order (BLAKE2b)."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
