"""The keyed permutation: a bijection at every size, even at small ones, and frozen."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order.keyed_permutation import (
    MAX_SEED,
    MAX_SIZE,
    SMALL,
    Ints,
    derive,
    permute,
    root_key,
    splitmix64,
    unpermute,
    whole_permutations,
)
from tests.effort import times
from tests.unit.data.order import order_reference as reference

WORDS = st.integers(0, MAX_SEED)


def key(number: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array([number], dtype=np.uint64)


def permutations(n: int, count: int) -> Ints:
    """Shape (count, n): the permutations of successive keys of one stream."""
    keys = derive(root_key(1, 1), np.arange(count))
    values = np.tile(np.arange(n), count)
    return permute(values, n, np.repeat(keys, n)).reshape(count, n)


def sigmas(counts: Ints, expected: float) -> float:
    """How far chi-square of `counts` lies above its mean, in standard deviations."""
    freedom = counts.size - 1
    chi_square = float(((counts - expected) ** 2).sum()) / expected
    return (chi_square - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("most", [SMALL, 5000])
def test_many_values_are_permuted_as_few_are(most: int) -> None:
    numbers = np.random.default_rng(most)
    sizes = numbers.integers(1, most, 20_000)
    values, keys = numbers.integers(0, sizes), derive(root_key(1, 1), np.arange(sizes.size))
    parts = [slice(at, at + 1000) for at in range(0, sizes.size, 1000)]
    each = [permute(values[part], sizes[part], keys[part]) for part in parts]
    few = [permute(values[i : i + 1], sizes[i : i + 1], keys[i : i + 1]) for i in range(9)]
    whole = permute(values, sizes, keys)
    assert whole.tolist() == np.concatenate(each).tolist()
    assert whole[:9].tolist() == np.concatenate(few).tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 33, 256, 257, 513, 1000, 1024, 1025])
def test_whole_permutations_are_those_of_their_values(size: int) -> None:
    keys = np.arange(13, dtype=np.uint64) * np.uint64(2**60 + 3)
    values = np.tile(np.arange(size), (keys.size, 1))
    assert np.array_equal(whole_permutations(size, keys), permute(values, size, keys[:, None]))


def test_splitmix64_gives_the_published_values() -> None:
    golden = 0x9E3779B97F4A7C15
    states = np.array([0, golden, 2 * golden % 2**64], dtype=np.uint64)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert splitmix64(states).tolist() == expected
    assert derive(key(0), [0, 1, 2]).tolist() == expected


@settings(max_examples=times(50), deadline=None)
@given(n=st.integers(1, 6000), number=WORDS)
def test_it_is_a_bijection(n: int, number: int) -> None:
    assert sorted(permute(np.arange(n), n, key(number))) == list(range(n))


def test_it_is_a_bijection_at_every_small_size_and_around_the_change_of_rounds() -> None:
    for n in [*range(1, 300), SMALL - 1, SMALL, SMALL + 1]:
        assert sorted(permute(np.arange(n), n, key(11))) == list(range(n))


@settings(max_examples=times(50), deadline=None)
@given(
    cases=st.lists(
        st.tuples(st.integers(1, MAX_SIZE) | st.integers(1, 2000), WORDS), min_size=1, max_size=9
    ),
    data=st.data(),
)
def test_each_value_has_its_own_size_and_key(
    cases: list[tuple[int, int]], data: st.DataObject
) -> None:
    sizes = [n for n, _ in cases]
    values = [data.draw(st.integers(0, n - 1)) for n in sizes]
    keys = np.array([k for _, k in cases], dtype=np.uint64)
    images = permute(np.array(values), np.array(sizes), keys).tolist()
    assert images == [reference.permute(v, *c) for v, c in zip(values, cases, strict=True)]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_all_orders_of_a_few_come_up_evenly(n: int) -> None:
    orders = math.factorial(n)
    codes = permutations(n, 200 * orders) @ n ** np.arange(n)
    _, counts = np.unique(codes, return_counts=True)
    assert counts.size == orders
    assert sigmas(counts, 200) < 4.5


@pytest.mark.parametrize("n", [8, 13, 21, 32])
def test_the_places_of_two_are_independent(n: int) -> None:
    """Joint images of neighbours and of values half the range apart."""
    drawn = permutations(n, 100 * n * n // 2)
    for other in (1, n // 2):
        pairs = drawn[:, 0] * n + drawn[:, other]
        counts = np.bincount(pairs, minlength=n * n).reshape(n, n)
        assert np.trace(counts) == 0
        off = counts[~np.eye(n, dtype=bool)]
        assert sigmas(off, len(drawn) / (n * (n - 1))) < 4.5


@pytest.mark.parametrize("n", [8, 100, SMALL, SMALL + 1, 4099])
def test_the_steps_between_neighbours_are_even(n: int) -> None:
    drawn = permutations(n, max(1, 400_000 // n))
    steps = np.bincount((np.diff(drawn, axis=1) % n).ravel(), minlength=n)[1:]
    assert sigmas(steps, float(steps.mean())) < 4.5


def test_an_impossible_seed_is_refused() -> None:
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match="seed"):
            root_key(seed, 0)


@pytest.mark.parametrize("size", [1, 2, 7, SMALL, SMALL + 1, 99_991, MAX_SIZE])
def test_the_inverse_gives_each_value_back(size: int) -> None:
    values = np.unique(np.linspace(0, size - 1, min(size, 500)).astype(np.int64))
    keys = derive(root_key(3, 1), values)
    assert unpermute(permute(values, size, keys), size, keys).tolist() == values.tolist()
