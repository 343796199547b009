"""Randomness as a function of (seed, step, rank): nothing of it has to be saved or restored."""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch's generators of this process for step `step`.

    So a resumed run draws what the uninterrupted one would have drawn.
    """
    torch.manual_seed(mix(seed, step, rank))


def mix(*words: int) -> int:
    """64 well mixed bits of `words`: splitmix64 (Steele, Lea, Flood 2014), word by word."""
    state = 0
    for word in words:
        state = (state + word + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state
