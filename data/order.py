"""The order of samples: a pure function from position to sample, free of any topology.

A stream position p lies in epoch p // n. Inside an epoch the n positions are permuted by a
bijection keyed by (seed, epoch): a balanced Feistel network (Luby and Rackoff, "How to construct
pseudorandom permutations from pseudorandom functions", SIAM J. Comput. 1988) over the next power
of 4, brought down to [0, n) by cycle walking (Black and Rogaway, "Ciphers with arbitrary finite
domains", CT-RSA 2002).

Frozen: a change of any value that comes out of here needs a new name in ORDER.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

ORDER = "order-0"
MAX_SAMPLES = 2**62  # the Feistel domain is at most 4**31, so all fits in int64

_Words: TypeAlias = npt.NDArray[np.uint64]

# Four rounds make a strong pseudorandom permutation of a large domain; with n = 5, samples and
# successive pairs are even over epochs (chi-square near its mean) only from eight rounds on.
_ROUNDS = 8
_WORD = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUND_STEPS = [np.uint64(r * int(_GOLDEN) & _WORD) for r in range(_ROUNDS)]
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def sample_at(positions: npt.NDArray[np.int64], *, n: int, seed: int) -> npt.NDArray[np.int64]:
    """The sample index of each stream position, in the shape of `positions`.

    `positions` are integers >= 0 of the infinite stream, `n` is the number of samples in the
    dataset; each aligned run of n positions yields every index of [0, n) exactly once.
    Raises ValueError for an impossible `n`, `seed` or position and TypeError for non-integers.
    """
    check_seed(seed)
    if not 1 <= n <= MAX_SAMPLES:
        raise ValueError(f"n must be in 1..2**62, got {n}")
    if not np.issubdtype(positions.dtype, np.integer):
        raise TypeError(f"positions must be integers, got dtype {positions.dtype}")
    flat = positions.astype(np.int64).ravel()
    if flat.size and int(flat.min()) < 0:
        raise ValueError(f"positions must be >= 0, got {flat.min()}")
    epochs, within = np.divmod(flat, n)
    samples = _permute(within.astype(np.uint64), n, _round_keys(seed, epochs.astype(np.uint64)))
    return samples.astype(np.int64).reshape(positions.shape)


def check_seed(seed: int) -> None:
    """Raise ValueError unless `seed` is an unsigned 64-bit integer."""
    if not 0 <= seed <= _WORD:
        raise ValueError(f"seed must be in 0..2**64-1, got {seed}")


def splitmix64(states: _Words) -> _Words:
    """The splitmix64 output for each state: 64-bit words in, 64-bit words out.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, in the
    form of Vigna's public-domain splitmix64.c. Array arithmetic wraps modulo 2**64, as it must.
    """
    z = states + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def _round_keys(seed: int, epochs: _Words) -> _Words:
    """Shape (rounds, len(epochs)): the key of each Feistel round for each epoch."""
    stream = splitmix64(np.array([seed], dtype=np.uint64))
    state = splitmix64(stream + epochs * _GOLDEN)
    return np.stack([splitmix64(state + step) for step in _ROUND_STEPS])


def _permute(values: _Words, n: int, keys: _Words) -> _Words:
    """Apply the Feistel network until each value has come back into [0, n)."""
    half = ((n - 1).bit_length() + 1) // 2
    values = _feistel(values, keys, half)
    outside = np.flatnonzero(values >= np.uint64(n))
    while outside.size:
        values[outside] = _feistel(values[outside], keys[:, outside], half)
        outside = outside[values[outside] >= np.uint64(n)]
    return values


def _feistel(values: _Words, keys: _Words, half: int) -> _Words:
    """One pass of the keyed bijection on [0, 4**half)."""
    shift, mask = np.uint64(half), np.uint64(2**half - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (splitmix64(right ^ key) & mask)
    return (left << shift) | right
