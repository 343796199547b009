"""A keyed permutation of [0, n), elementwise: each value has its own n and its own key.

It is a Feistel network with unequal halves, one of them not a power of two, restricted to [0, n) by
cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). The domain
exceeds n by less than sqrt(2 n), so few values walk. The round function is the output function of
splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).

Frozen: a change of any value that this module returns needs a new name for every order above it.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]

_Network: TypeAlias = Callable[[Words, Words, Words, int], Words]

MAX_SIZE = 2**53  # a size is exact as a float64
MAX_SEED = 2**64 - 1

# After eight rounds the joint places of two values show no pattern, for n of about 100 or more. For
# smaller n more rounds are needed: chi-square of all n! orders of n = 7 is at its mean from 20
# rounds on (16: 29 sigma).
SMALL = 1024
ROUNDS = 8
ROUNDS_SMALL = 24

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_AT_A_TIME = 2**13  # values to which the network is applied at a time: they stay in a core's cache
_HALF = 32  # values that half of a small value has at most
_ROWS = 256 // _HALF
_27, _30, _31, _32 = (np.uint64(bits) for bits in (27, 30, 31, 32))


def check_seed(seed: int) -> None:
    """Raise ValueError unless `seed` is an unsigned 64-bit integer."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be in 0..2**64-1, got {seed}")


def splitmix64(states: Words) -> Words:
    """Return the splitmix64 output for each state: 64-bit words in, 64-bit words out.

    In the form of Vigna's public-domain splitmix64.c; sums and products are modulo 2**64.
    """
    words = states + _GOLDEN
    _mix(words, np.empty_like(words))
    return words


def derive(keys: Words, numbers: npt.ArrayLike) -> Words:
    """Return the `numbers`-th output (from 0) of splitmix64 seeded with each key; the two
    broadcast."""
    return splitmix64(keys + np.asarray(numbers).astype(np.uint64) * _GOLDEN)


def root_key(seed: int, purpose: int) -> Words:
    """Return the key of one use of a seed, with shape (1,). Purposes are listed in ORDER.md."""
    check_seed(seed)
    return derive(derive(np.array([seed], dtype=np.uint64), 0), purpose)


def permute(values: Ints, sizes: npt.ArrayLike, keys: Words) -> Ints:
    """Return the image of each value under the permutation of [0, size) that its key selects.

    `values` has any shape; `sizes` (integers in 1..2**53) and `keys` broadcast to it, and of one
    size this takes less time. Every value must be in [0, size): this is not checked.
    """
    return _applied(_feistel, values, sizes, keys)


def whole_permutations(size: int, keys: Words) -> Ints:
    """Return the image of all values in [0, size) under the permutation that each key selects, with
    shape (n, size), as `permute` does; of small sizes in less than half of the time."""
    if size > SMALL:
        return permute(np.tile(np.arange(size), (keys.size, 1)), size, keys[:, None])
    parts = [slice(at, at + _ROWS) for at in range(0, keys.size, _ROWS)]
    return np.concatenate([_small_permutations(size, keys[part]) for part in parts])


def unpermute(values: Ints, sizes: npt.ArrayLike, keys: Words) -> Ints:
    """Return the value of which `permute` makes each of `values`; arguments as of `permute`."""
    return _applied(_inverse_feistel, values, sizes, keys)


def _applied(network: _Network, values: Ints, sizes: npt.ArrayLike, keys: Words) -> Ints:
    words = values.astype(np.uint64)
    sizes = np.asarray(sizes, dtype=np.uint64)
    small = sizes <= SMALL
    if small.all():
        return _walk(network, words, sizes, keys, ROUNDS_SMALL).view(np.int64)
    if not small.any():
        return _walk(network, words, sizes, keys, ROUNDS).view(np.int64)
    small = np.broadcast_to(small, words.shape)
    sizes, keys = np.broadcast_to(sizes, words.shape), np.broadcast_to(keys, words.shape)
    words[small] = _walk(network, words[small], sizes[small], keys[small], ROUNDS_SMALL)
    large = ~small
    words[large] = _walk(network, words[large], sizes[large], keys[large], ROUNDS)
    return words.view(np.int64)


def _walk(network: _Network, values: Words, sizes: Words, keys: Words, rounds: int) -> Words:
    """Apply the network until each value has come back into [0, size)."""
    if values.ndim == 1 and values.size > _AT_A_TIME and sizes.shape == keys.shape == values.shape:
        parts = [slice(at, at + _AT_A_TIME) for at in range(0, values.size, _AT_A_TIME)]
        each = [network(values[part], sizes[part], keys[part], rounds) for part in parts]
        values = np.concatenate(each)
    else:
        values = network(values, sizes, keys, rounds)
    if not (is_outside := values >= sizes).any():
        return values
    sizes, keys = np.broadcast_to(sizes, values.shape), np.broadcast_to(keys, values.shape)
    flat = values.ravel()
    outside = np.flatnonzero(is_outside)
    sizes, keys = sizes[is_outside], keys[is_outside]
    while outside.size:
        flat[outside] = network(flat[outside], sizes, keys, rounds)
        again = flat[outside] >= sizes
        outside, sizes, keys = outside[again], sizes[again], keys[again]
    return flat.reshape(values.shape)


def _feistel(values: Words, sizes: Words, keys: Words, rounds: int) -> Words:
    """Apply one pass of the bijection on [0, 2**bits * tops), the least such domain that holds
    `size`.

    bits is half the bit length of size - 1, rounded down.
    """
    bits, mask, tops = _halves(sizes)
    low, top = values & mask, values >> bits
    key, hashed, spare = keys.copy(), np.empty_like(low), np.empty_like(low)
    for number in range(rounds):
        key += _GOLDEN
        np.bitwise_xor(low if number % 2 else top, key, out=hashed)
        _mix(hashed, spare)
        if number % 2 == 0:
            hashed &= mask
            low ^= hashed
            continue
        hashed >>= _32  # a 32-bit fraction of tops: no division
        hashed *= tops
        hashed >>= _32
        top += hashed
        np.subtract(top, tops, out=hashed)  # wraps to a huge number unless top >= tops
        np.minimum(top, hashed, out=top)
    return (top << bits) | low


def _small_permutations(size: int, keys: Words) -> Ints:
    """Return `whole_permutations` of a small size by at most `_ROWS` keys.

    A half has at most 32 values, so a byte has room for one and for the number of its key. The
    round function is computed of these alone, and looked up by the fastest table of bytes that
    there is, that of `bytes.translate`.
    """
    bits, mask, tops = (int(each[0]) for each in _found_halves(np.array([size], np.uint64)))
    of_tops, of_lows = _round_tables(keys, bits, tops)
    values, rows = np.arange(tops << bits), (np.arange(keys.size) * _HALF)[:, None]
    number = rows.astype(np.uint8)
    top = np.tile(values >> bits, (keys.size, 1)).astype(np.uint8)
    low = np.tile(values & mask, (keys.size, 1)).astype(np.uint8) | number
    for of_top, of_low in zip(of_tops, of_lows, strict=True):
        low ^= _looked_up(of_top, top | number)
        top += _looked_up(of_low, low)
        np.minimum(top, top - np.uint8(tops), out=top)  # which is huge unless top >= tops
    images = (top.astype(np.int64) << bits) | (low ^ number)
    found = images[:, :size]
    row, column = np.nonzero(found >= size)
    while row.size:
        found[row, column] = images[row, found[row, column]]
        again = found[row, column] >= size
        row, column = row[again], column[again]
    return found


def _round_tables(keys: Words, bits: int, tops: int) -> tuple[list[bytes], list[bytes]]:
    """Return two lists of tables, with one table for each pair of rounds: the round function of the
    first round on each value of the top half, and that of the second round on the low half. Byte
    32 * k + v of a table is the result for value v and key number k."""
    rounds = np.arange(1, ROUNDS_SMALL + 1, dtype=np.uint64) * _GOLDEN
    words = (keys[:, None] + rounds).T[:, :, None] ^ np.arange(_HALF, dtype=np.uint64)
    _mix(words, np.empty_like(words))
    of_tops = words[0::2] & np.uint64((1 << bits) - 1)
    of_lows = ((words[1::2] >> _32) * np.uint64(tops)) >> _32
    tables = np.zeros((2, ROUNDS_SMALL // 2, 256), dtype=np.uint8)
    tables[0, :, : keys.size * _HALF] = of_tops.reshape(len(of_tops), -1)
    tables[1, :, : keys.size * _HALF] = of_lows.reshape(len(of_lows), -1)
    first, second = ([table.tobytes() for table in of] for of in tables)
    return first, second


def _looked_up(table: bytes, index: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the byte of a table of 256 for each index."""
    return np.frombuffer(index.tobytes().translate(table), dtype=np.uint8).reshape(index.shape)


def _inverse_feistel(values: Words, sizes: Words, keys: Words, rounds: int) -> Words:
    """Apply the inverse of `_feistel`: its rounds in the opposite order."""
    bits, mask, tops = _halves(sizes)
    low, top = values & mask, values >> bits
    hashed, spare = np.empty_like(low), np.empty_like(low)
    for number in reversed(range(rounds)):
        key = keys + np.uint64((number + 1) * int(_GOLDEN) % 2**64)
        np.bitwise_xor(low if number % 2 else top, key, out=hashed)
        _mix(hashed, spare)
        if number % 2 == 0:
            low ^= hashed & mask
            continue
        moved = ((hashed >> _32) * tops) >> _32
        top = np.where(top >= moved, top - moved, top + tops - moved)
    return (top << bits) | low


def _halves(sizes: Words) -> tuple[Words, Words, Words]:
    """Return (bits of the low half, its mask, values of the top half) of the network of each
    size."""
    if sizes.size > SMALL and int(sizes.max()) <= SMALL:
        bits, mask, tops = _small_halves()
        index = sizes.view(np.int64)
        return bits[index], mask[index], tops[index]
    return _found_halves(sizes)


@cache
def _small_halves() -> tuple[Words, Words, Words]:
    """Return the halves of all small sizes, which it takes less time to look up than to find."""
    bits, mask, tops = _found_halves(np.maximum(np.arange(SMALL + 1, dtype=np.uint64), 1))
    return bits, mask, tops


def _found_halves(sizes: Words) -> tuple[Words, Words, Words]:
    bits = (np.frexp((sizes - np.uint64(1)).astype(np.float64))[1] >> 1).astype(np.uint64)
    mask = (np.uint64(1) << bits) - np.uint64(1)
    return bits, mask, (sizes + mask) >> bits


def _mix(words: Words, spare: Words) -> None:
    """Apply the output function of splitmix64 in place; `spare` has the same shape."""
    np.right_shift(words, _30, out=spare)
    words ^= spare
    words *= _MIX_1
    np.right_shift(words, _27, out=spare)
    words ^= spare
    words *= _MIX_2
    np.right_shift(words, _31, out=spare)
    words ^= spare
