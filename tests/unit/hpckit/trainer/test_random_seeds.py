"""Randomness as a function of seed, step and rank."""

from __future__ import annotations

import random
from itertools import pairwise, product

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.trainer.random_seeds import mix, seed_step

WORDS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4)


FROZEN = {
    (0,): 5263075011782779848,
    (0, 0, 0): 6301843024424383696,
    (1, 2, 3): 5809300636878265108,
    (2**63 - 1, 10**6, 4095): 8451398542410179440,
}


def test_frozen_values() -> None:
    """A run that was interrupted before an update has to draw the same after it."""
    assert {words: mix(*words) for words in FROZEN} == FROZEN


@given(words=WORDS)
def test_it_is_64_bits_and_the_same_each_time(words: list[int]) -> None:
    assert 0 <= mix(*words) < 2**64
    assert mix(*words) == mix(*words)


@given(words=WORDS, extra=st.integers(0, 2**63 - 1))
def test_every_word_and_their_number_count(words: list[int], extra: int) -> None:
    assert mix(*words, extra) != mix(*words)


def test_neighbours_share_nothing() -> None:
    found = [mix(*words) for words in product(range(12), repeat=3)]
    assert len(set(found)) == len(found)
    ones = sum(value.bit_count() for value in found) / len(found)
    assert 31 < ones < 33
    flips = [(a ^ b).bit_count() for a, b in pairwise(found)]
    assert 31 < sum(flips) / len(flips) < 33


def test_a_step_draws_the_same_again_and_each_rank_its_own() -> None:
    def draw(seed: int, step: int, rank: int) -> list[float]:
        seed_step(seed, step, rank)
        found: list[float] = torch.rand(4).tolist()
        return found

    first = draw(1, 5, 0)
    torch.rand(100)
    assert draw(1, 5, 0) == first
    assert first not in (draw(1, 5, 1), draw(1, 6, 0), draw(2, 5, 0))
    draw(2**63 - 1, 2**40, 4096)  # no seed is too large for torch


@settings(deadline=None)
@given(seed=st.integers(0, 2**63 - 1), step=st.integers(0, 2**40), rank=st.integers(0, 2**20))
def test_a_step_draws_what_all_draw_from_that_seed(seed: int, step: int, rank: int) -> None:
    seed_step(seed, step, rank)
    drawn = torch.rand(4), np.random.rand(4), random.random()
    mixed = mix(seed, step, rank)
    torch.manual_seed(mixed)
    np.random.seed(mixed % 2**32)
    random.seed(mixed)
    assert torch.equal(drawn[0], torch.rand(4))
    assert np.array_equal(drawn[1], np.random.rand(4))
    assert drawn[2] == random.random()
