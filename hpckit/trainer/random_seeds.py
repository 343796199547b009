"""Randomness as a function of (seed, step, rank), so that no generator state has to be saved or
restored."""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

import numpy as np
import torch


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed the generators of this process for step `step`.

    A resumed run therefore draws the same numbers as an uninterrupted one.
    """
    words = _begun(seed).copy()
    words.update(b"%d, %d)" % (step, rank))
    seed_all(int.from_bytes(words.digest(), "little"))  # mix(seed, step, rank)


def seed_all(seed: int) -> None:
    """Seed the generators of torch (for the CPU and the GPU in use), numpy and Python with 64 bits.

    It has the effect of torch.manual_seed, which takes most of a millisecond: that visits every
    possible kind of device, and formats the stack for each one not in use.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@lru_cache(maxsize=1)
def _begun(seed: int) -> hashlib.blake2b:
    """Return the hash state of `mix` after words with this beginning."""
    return hashlib.blake2b(b"(%d, " % seed, digest_size=8)


def mix(*words: int | str) -> int:
    """Return 64 bits that depend on all of `words` and on their order (BLAKE2b)."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
