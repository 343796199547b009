"""A consumer that reads by itself gets what threads would have given it."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import DataError
from data.read.batches.inline_reads import InlineReadDecision, ReadCost, leaves_time
from data.read.batches.thread_prefetch import InlinePrefetcher, ThreadPrefetcher, make_prefetcher


class Told(InlineReadDecision):
    """Reads alone when it is told to."""

    def __init__(self, turns: Iterator[bool]) -> None:
        super().__init__()
        self._turns = turns

    def given(self, by_itself: bool) -> None:
        self.now = next(self._turns, True)


def test_a_read_that_waits_is_left_to_threads() -> None:
    assert ReadCost(wall_s=5.0, cpu_s=1.0, sleeps=3).waited
    assert not ReadCost(wall_s=5.0, cpu_s=1.0, sleeps=0).waited  # another program had the processor
    assert not ReadCost(wall_s=1.5, cpu_s=1.0, sleeps=1).waited


def test_a_consumer_that_another_program_kept_from_the_processor_was_not_busy() -> None:
    assert ReadCost(wall_s=5.0, cpu_s=1.0, sleeps=0).busy_s == 1.0
    assert ReadCost(wall_s=5.0, cpu_s=1.0, sleeps=1).busy_s == 5.0  # it waits, as for a device


def test_threads_read_while_the_consumer_is_busy() -> None:
    cost = ReadCost(wall_s=1.0, cpu_s=1.0, sleeps=0)
    assert leaves_time(0.6, cost)
    assert not leaves_time(0.4, cost)


def test_after_a_read_alone_that_waited_threads_read_for_a_while_and_then_for_twice_as_long() -> (
    None
):
    alone = InlineReadDecision()
    rests = []
    for _ in range(2):
        alone._cost = ReadCost(wall_s=5e3, cpu_s=1e3, sleeps=9)
        alone.given(True)
        rested = 0
        while not alone.now:
            alone.asked()
            alone.given(False)
            rested += 1
        rests.append(rested)
    assert rests[1] == 2 * rests[0] > 0


def test_the_cost_of_what_threads_make_is_seen_and_a_quick_consumer_reads_then() -> None:
    alone = InlineReadDecision()
    made = ThreadPrefetcher(
        lambda _: sum(range(100_000)), iter(range(50)), depth=2, threads=2, inline=alone
    )
    was_alone = False
    for _ in range(50):
        made.next()
        was_alone |= alone.now
        never = ReadCost(wall_s=float("inf"), cpu_s=float("inf"), sleeps=0)
        alone._delivered = threading.get_ident(), never  # it was busy for less than no time
    assert was_alone
    made.close("it is over")


@given(turns=st.lists(st.booleans(), max_size=40), threads=st.integers(1, 3))
def test_order_end_and_errors_are_the_same_whoever_reads(turns: list[bool], threads: int) -> None:
    def load(number: int) -> int:
        return number // (number != 30)

    made = ThreadPrefetcher(
        load, iter(range(40)), depth=2, threads=threads, inline=Told(iter([*turns, True]))
    )
    assert [made.next() for _ in range(30)] == list(range(30))
    with pytest.raises(ZeroDivisionError):
        made.next()
    with pytest.raises(DataError, match="ended with an error"):
        made.next()
    texts = ThreadPrefetcher(
        str, iter(range(40)), depth=2, threads=threads, inline=Told(iter(turns))
    )
    assert [texts.next() for _ in range(40)] == [str(number) for number in range(40)]
    for _ in range(2):
        with pytest.raises(StopIteration):
            texts.next()
    assert texts.ready == 0


def test_alone_it_is_the_consumers_thread_that_reads_and_it_can_be_closed() -> None:
    made = ThreadPrefetcher(
        lambda _: threading.get_ident(),
        iter(range(50)),
        depth=2,
        threads=2,
        inline=Told(iter([])),
    )
    found = [made.next() for _ in range(20)]
    assert threading.get_ident() not in found[:2]
    assert set(found[2:]) == {threading.get_ident()}
    made.close("it is over")
    with pytest.raises(DataError, match="it is over"):
        made.next()


@pytest.mark.parametrize("threads", [0, 2])
def test_what_is_interrupted_in_the_consumers_thread_does_not_go_on_without_its_step(
    threads: int,
) -> None:
    def load(number: int) -> int:
        if number == 5:
            raise KeyboardInterrupt
        return number

    alone = Told(iter([]))
    made = make_prefetcher(load, iter(range(20)), depth=2, threads=threads, inline=alone)
    assert isinstance(made, ThreadPrefetcher if threads else InlinePrefetcher)
    assert [made.next() for _ in range(5)] == list(range(5))
    with pytest.raises(KeyboardInterrupt):
        made.next()
    with pytest.raises(DataError, match="interrupted"):
        made.next()
