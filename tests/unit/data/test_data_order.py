"""The order of samples: a frozen, keyed bijection that knows no topology."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order import MAX_SAMPLES, ORDER, sample_at, splitmix64
from data.placement import share

SEEDS = st.integers(0, 2**64 - 1)


def at(positions: range | list[int], n: int, seed: int) -> list[int]:
    found: list[int] = sample_at(np.array(positions, dtype=np.int64), n=n, seed=seed).tolist()
    return found


def test_splitmix64_gives_the_published_values() -> None:
    golden = 0x9E3779B97F4A7C15
    states = np.array([0, golden, 2 * golden % 2**64], dtype=np.uint64)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert splitmix64(states).tolist() == expected


def test_golden_vectors() -> None:
    """Frozen: if one of these changes, the order needs a new name."""
    assert ORDER == "order-0"
    assert at(range(16), 10, 0) == [0, 4, 5, 8, 6, 7, 3, 2, 9, 1, 6, 4, 7, 8, 9, 2]
    assert at(range(8), 1000, 7) == [47, 857, 314, 875, 649, 430, 888, 112]
    big = [385214100387, 3534652094, 99312736605, 185520156263]
    assert at(range(1_000_000, 1_000_004), 10**12, 2**64 - 1) == big
    assert at(range(4), 1, 7) == [0, 0, 0, 0]


@settings(max_examples=150, deadline=None)
@given(n=st.integers(1, 5000), seed=SEEDS, epoch=st.integers(0, 10**6))
def test_each_epoch_is_a_bijection(n: int, seed: int, epoch: int) -> None:
    assert sorted(at(range(epoch * n, (epoch + 1) * n), n, seed)) == list(range(n))


def test_every_small_size_is_a_bijection() -> None:
    for n in range(1, 300):
        assert sorted(at(range(n), n, 11)) == list(range(n))


def test_epochs_and_seeds_differ() -> None:
    first = at(range(1000), 1000, 3)
    assert first != at(range(1000, 2000), 1000, 3)
    assert first != at(range(1000), 1000, 4)
    assert first != list(range(1000))


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 10**9), seed=SEEDS, first=st.integers(0, 2**61))
def test_a_vector_equals_its_scalars(n: int, seed: int, first: int) -> None:
    positions = range(first, first + 20)
    assert at(positions, n, seed) == [at([p], n, seed)[0] for p in positions]


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(1, 500),
    steps=st.lists(st.tuples(st.integers(1, 97), st.integers(1, 31)), min_size=1, max_size=12),
)
def test_any_split_into_steps_and_ranks_gives_the_same_stream(
    n: int, steps: list[tuple[int, int]]
) -> None:
    """Each step has its own batch size and world size; the stream must not notice."""
    got: list[int] = []
    first = 0
    for size, world in steps:
        for rank in range(world):
            got += at(share(first, size, rank, world), n, 5)
        first += size
    assert got == at(range(first), n, 5)


def test_small_sizes_are_permuted_evenly() -> None:
    """All 24 orders of 4 samples come up about equally often over many epochs."""
    epochs = np.array(at(range(4 * 24_000), 4, 1)).reshape(-1, 4)
    _, counts = np.unique(epochs, axis=0, return_counts=True)
    assert len(counts) == 24
    assert counts.min() > 850
    assert counts.max() < 1150


def test_shape_is_kept_and_the_largest_size_works() -> None:
    positions = np.arange(6).reshape(2, 3)
    assert sample_at(positions, n=6, seed=0).shape == (2, 3)
    assert sample_at(np.array([], dtype=np.int64), n=6, seed=0).shape == (0,)
    assert 0 <= at([2**63 - 1], MAX_SAMPLES, 0)[0] < MAX_SAMPLES


@pytest.mark.parametrize(("n", "seed", "first"), [(0, 0, 0), (MAX_SAMPLES + 1, 0, 0), (5, -1, 0)])
def test_impossible_arguments_are_refused(n: int, seed: int, first: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        at([first], n, seed)


def test_wrong_positions_are_refused() -> None:
    with pytest.raises(ValueError, match=">= 0"):
        at([-1], 5, 0)
    with pytest.raises(TypeError, match="integers"):
        sample_at(np.array([0.5]), n=5, seed=0)
