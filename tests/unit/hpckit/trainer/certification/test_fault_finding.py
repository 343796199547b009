"""Faults of ranks are found in the digests of their gradients, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.trainer.certification.fault_finding import (
    Fault,
    differs,
    find_faults,
    find_faults_in_band,
    is_noisy,
)

Digest = Callable[[int, int, bool], int]
"""What the rank at a place computes of a micro-batch, in one of the two passes."""


def right(place: int, owner: int, is_repeated: bool) -> int:
    return 1000 + owner


def tables(count: int, digest: Digest) -> tuple[list[list[int]], list[list[int]]]:
    """The digests of the first pass, with two shifts, and those of the second."""

    def table(shifts: int, is_repeated: bool) -> list[list[int]]:
        return [
            [digest(place, (place - shift) % count, is_repeated) for shift in range(shifts)]
            for place in range(count)
        ]

    return table(2, False), table(3 if count > 2 else 2, True)


def found(count: int, digest: Digest) -> list[Fault]:
    first, again = tables(count, digest)
    assert differs(first)
    assert not is_noisy(first, again)
    return find_faults(first, again)


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_sound_ranks_do_not_differ(count: int) -> None:
    first, again = tables(count, right)
    assert not differs(first)
    assert find_faults(first, again) == []


@given(count=st.integers(3, 9), bad=st.integers(0, 8), seed=st.integers(0, 99))
def test_a_rank_that_is_always_wrong_is_persistent(count: int, bad: int, seed: int) -> None:
    bad %= count

    def equally(place: int, owner: int, is_repeated: bool) -> int:
        return owner if place == bad else right(place, owner, is_repeated)

    draw = Random(seed)

    def at_random(place: int, owner: int, is_repeated: bool) -> int:
        return draw.getrandbits(60) if place == bad else right(place, owner, is_repeated)

    for digest in (equally, at_random):
        (fault,) = found(count, digest)
        assert fault.places == (bad,)
        assert fault.is_persistent
        assert fault.wrong.place == bad
        assert fault.right.place != bad


@given(count=st.integers(2, 9), bad=st.integers(0, 8), is_own=st.booleans())
def test_a_rank_that_is_wrong_once_is_transient(count: int, bad: int, is_own: bool) -> None:
    bad %= count
    of = bad if is_own else (bad - 1) % count

    def digest(place: int, owner: int, is_repeated: bool) -> int:
        is_wrong = place == bad and owner == of and not is_repeated
        return 7 if is_wrong else right(place, owner, is_repeated)

    (fault,) = found(count, digest)
    assert (fault.places, fault.is_persistent) == ((bad,), False)


def test_of_two_ranks_one_is_named_if_it_is_wrong_at_random() -> None:
    draw = Random(1)

    def digest(place: int, owner: int, is_repeated: bool) -> int:
        return draw.getrandbits(60) if place == 1 else right(place, owner, is_repeated)

    faults = found(2, digest)
    assert {fault.places for fault in faults} == {(1,)}
    assert all(fault.is_persistent for fault in faults)


def test_of_two_ranks_none_is_named_if_both_are_sure() -> None:
    def digest(place: int, owner: int, is_repeated: bool) -> int:
        return 10 * place + owner

    faults = found(2, digest)
    assert {fault.places for fault in faults} == {(0, 1)}
    assert all(fault.is_persistent for fault in faults)


def test_two_wrong_ranks_are_both_named() -> None:
    def digest(place: int, owner: int, is_repeated: bool) -> int:
        return 10 * place + owner if place in (1, 4) else right(place, owner, is_repeated)

    faults = found(7, digest)
    assert [fault.places for fault in faults] == [(1,), (4,)]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_kernels_that_are_not_deterministic_are_no_fault(count: int) -> None:
    draw = Random(1)
    first, again = tables(count, lambda *_: draw.getrandbits(60))
    assert differs(first)
    assert is_noisy(first, again)


@pytest.mark.parametrize(
    ("exceeds", "places"),
    [
        ([False] * 4, []),
        ([True, True, False, False], [(0,)]),  # 0 computed 3's and its own wrongly
        ([True, False, False, True], [(3,)]),
        ([False, True, False, False], [(0, 1)]),
        ([False, True, True, False], [(1,)]),
        ([True, True], [(0, 1)]),
        ([False, False], []),
    ],
)
def test_in_a_band_two_neighbours_name_a_rank(
    exceeds: list[bool], places: list[tuple[int, ...]]
) -> None:
    assert find_faults_in_band(exceeds) == places
