"""Seeding of the global generators of random, numpy and torch for each sample by its position."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from struct import Struct
from typing import Any

import numpy as np

SAMPLE, BATCH, CHOICE = 0, 1, 2
"""Purposes, each of which has its own random numbers."""

_KEY = Struct("<QQQ")
_SEEDS = Struct("<QIQ")


def seeds(seed: int, purpose: int, position: int) -> tuple[int, int, int]:
    """Return (64 bits for random, 32 for numpy, 64 for torch), by BLAKE2b of the arguments.

    A position counts on through the epochs, so each epoch has other seeds.
    """
    key = _KEY.pack(seed & (2**64 - 1), purpose, position)
    first, second, third = _SEEDS.unpack_from(blake2b(key, digest_size=24).digest())
    return first, second, third


def uniform(seed: int, position: int, number: int) -> float:
    """Return a number in [0, 1) for the choice number `number` at a position."""
    return float(seeds(seed, CHOICE + number, position)[0] >> 11) * 2.0**-53


class Seeder:
    """Seeds the generators that augmentations use, so that they are the same on any ranks and
    workers.

    Must be used from one thread at a time, as the generators are those of the process.
    """

    def __init__(self, seed: int, *, restore: bool) -> None:
        self._seed, self._restore = seed, restore
        self._numpy = np.random.MT19937(0)

    def at(self, position: int, purpose: int = SAMPLE) -> None:
        """Seed all three generators."""
        first, second, third = seeds(self._seed, purpose, position)
        random.seed(first)
        np.random.seed(second)
        torch: Any = sys.modules.get("torch")
        # torch.manual_seed seeds each kind of device, which takes 200 times as long
        if torch is not None:
            torch.default_generator.manual_seed(third)

    @contextmanager
    def around(self) -> Iterator[None]:
        """Restore the generators afterwards, in a process that belongs to the user."""
        if not self._restore:
            yield
            return
        torch: Any = sys.modules.get("torch")
        before = random.getstate()
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
        torch_before = None if torch is None else torch.get_rng_state()
        # a swap costs less than a copy of the state
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            np.random.set_bit_generator(generator)  # type: ignore[attr-defined]
            random.setstate(before)
            if torch_before is not None:
                torch.set_rng_state(torch_before)
