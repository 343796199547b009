"""How an object is divided into ranges, whose bytes come in order whatever thread reads them."""

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.source.host_limits import HostLimiter, Limits
from data.source.parallel_ranges import (
    FIRST_BYTES,
    LEAST_BYTES,
    MOST_BYTES,
    ByteRange,
    RangeAhead,
    cut_ranges,
    read_in_order,
)


@given(st.integers(0, 2**33), st.integers(1, 2**33), st.integers(1, 64))
def test_ranges_are_all_bytes_each_once(start: int, more: int, count: int) -> None:
    size = start + more
    ranges = cut_ranges(start, size, count)
    assert (ranges[0][0], ranges[-1][1]) == (start, size)
    assert all(one[1] == other[0] for one, other in pairwise(ranges))
    if len(ranges) > 1:
        assert count > 1
        assert ranges[0][1] - start == FIRST_BYTES
        sizes = [end - begin for begin, end in ranges[1:]]
        assert all(LEAST_BYTES <= each <= MOST_BYTES for each in sizes[:-1])
        assert 0 < sizes[-1] <= MOST_BYTES
        assert len(sizes) >= 2


def test_a_small_object_is_one_range() -> None:
    assert cut_ranges(0, FIRST_BYTES + LEAST_BYTES, 4) == [(0, FIRST_BYTES + LEAST_BYTES)]
    assert cut_ranges(0, 10**9, 1) == [(0, 10**9)]


RANGES = [(begin, begin + 10) for begin in range(0, 100, 10)]
BODY = bytes(range(100))


def pieces_of(part: ByteRange) -> Iterator[bytes]:
    for at in range(*part, 3):
        yield BODY[at : min(at + 3, part[1])]


@given(st.lists(st.booleans(), min_size=40), st.integers(1, 5))
def test_bytes_come_in_order_whichever_are_read_beside(spare: list[bool], count: int) -> None:
    begun: list[ByteRange] = []
    held = 0

    def release() -> None:
        nonlocal held
        held -= 1

    def read_beside(part: ByteRange) -> RangeAhead | None:
        nonlocal held
        if not spare.pop():
            return None
        begun.append(part)
        held += 1
        assert held <= count
        return RangeAhead(pieces_of(part), release)

    spare[:0] = [False] * 100
    found = b"".join(read_in_order(RANGES, pieces_of, read_beside, count))
    assert found == BODY
    assert held == 0
    assert RANGES[0] not in begun


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_an_error_comes_in_its_place_and_all_is_given_back(kind: type[BaseException]) -> None:
    """As does what is no Exception, such as a panic of the client library."""
    closed: list[ByteRange] = []

    def failing(part: ByteRange) -> Iterator[bytes]:
        if part[0] == 30:
            raise kind("broken")
        yield from pieces_of(part)

    def read_beside(part: ByteRange) -> RangeAhead:
        return RangeAhead(failing(part), lambda: closed.append(part))

    found: list[bytes] = []
    with pytest.raises(kind, match="broken"):
        found.extend(read_in_order(RANGES, pieces_of, read_beside, 3))
    assert b"".join(found) == BODY[:30]
    assert sorted(closed) == RANGES[1:6]


def test_a_reader_that_leaves_ends_the_threads() -> None:
    more, ended = threading.Event(), threading.Barrier(3)

    def endless(part: ByteRange) -> Iterator[bytes]:
        try:
            yield b"x"
            more.wait(60)
            while True:
                yield b"x"
        finally:
            ended.wait(60)

    pieces = read_in_order(
        RANGES, pieces_of, lambda part: RangeAhead(endless(part), lambda: None), 2
    )
    while next(pieces) != b"x":
        pass
    pieces.close()  # type: ignore[attr-defined]
    more.set()
    ended.wait(60)


def test_spare_slots_are_those_that_nobody_needs() -> None:
    host = HostLimiter(Limits(requests=4))  # of which three may be streams
    with host.stream(), host.request():
        slots = [host.spare_stream(), host.spare_stream()]
        assert None not in slots
        assert host.spare_stream() is None
        for slot in slots:
            assert slot is not None
            slot.__exit__(None, None, None)
    again = [host.spare_stream() for _ in range(4)]
    assert [slot is None for slot in again] == [False, False, False, True]
