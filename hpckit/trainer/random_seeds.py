"""Random seeds as a function of seed, step and rank, so that no generator state has to be saved or
restored."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed the random number generators of this process for step `step`.

    A resumed run therefore draws the same numbers as an uninterrupted one.
    """
    state = _hash_of_seed(seed).copy()
    state.update(b"%d, %d)" % (step, rank))
    seed_all(int.from_bytes(state.digest(), "little"))  # mix(seed, step, rank)


def seed_all(seed: int) -> None:
    """Seed the generators of torch (for the CPU and the GPU in use), numpy and Python with a number
    of 64 bits.

    For torch this has the effect of torch.manual_seed, which takes most of a millisecond, since it
    visits every kind of device and formats the stack for each one that is not in use.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Put the random number generators that `seed_all` seeds into their present state again at the
    end of the block."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    state = torch.default_generator.get_state()
    is_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda_state = torch.cuda.get_rng_state() if is_cuda else None
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


@lru_cache(maxsize=1)
def _hash_of_seed(seed: int) -> hashlib.blake2b:
    """Return the state of the hash of `mix` after the first word, `seed`."""
    return hashlib.blake2b(b"(%d, " % seed, digest_size=8)


def mix(*words: int | str) -> int:
    """Return a number of 64 bits that depends on all `words` and on their order (BLAKE2b)."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
