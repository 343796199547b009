from __future__ import annotations

import logging
import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.errors import StoreAccessError, StoreError
from checkpointing.storage.retry import (
    RequestRetrier,
    StorageRetryPolicy,
    TransientRequestError,
    next_wait_s,
)

POLICY = StorageRetryPolicy(budget_s=100.0, cap_s=500.0, first_s=1.0, longest_s=8.0)


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Broken:
    """A request that fails `times` times, each after `seconds`."""

    def __init__(self, clock: Clock, times: float, seconds: float = 0.0) -> None:
        self.clock, self.times, self.seconds, self.tries = clock, times, seconds, 0

    def __call__(self) -> str:
        self.tries += 1
        self.clock.now_s += self.seconds
        if self.tries <= self.times:
            raise OSError("down")
        return "done"


def retrier(policy: StorageRetryPolicy, clock: Clock) -> RequestRetrier:
    return RequestRetrier(
        policy, (OSError,), lambda error, what: None, clock=clock, jitter=lambda: 0.0
    )


@pytest.mark.parametrize(("tries", "wait_s"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (500, 8.0)])
def test_waits_double_up_to_the_longest(tries: int, wait_s: float) -> None:
    assert next_wait_s(POLICY, tries, 1.0, math.inf, 1.0) == wait_s
    assert next_wait_s(POLICY, tries, 1.0, math.inf, 0.0) == 0.0


def test_the_last_wait_ends_with_the_budget() -> None:
    assert next_wait_s(POLICY, 9, 97.0, math.inf, 1.0) == 3.0


@pytest.mark.parametrize(
    ("tries", "elapsed_s", "idle_s", "goes_on"),
    [
        (5, 99.0, math.inf, True),
        (5, 100.0, math.inf, False),
        (1, 900.0, math.inf, True),  # one time-out alone is longer than the budget
        (2, 900.0, math.inf, False),
        (5, 400.0, 99.0, True),  # others succeed
        (5, 400.0, 100.0, False),
        (5, 500.0, 0.0, False),  # the cap
    ],
)
def test_when_to_give_up(tries: int, elapsed_s: float, idle_s: float, goes_on: bool) -> None:
    assert (next_wait_s(POLICY, tries, elapsed_s, idle_s, 0.5) is not None) is goes_on


@pytest.mark.parametrize(
    ("elapsed_s", "idle_s", "goes_on"),
    [(14.9, math.inf, True), (15.0, math.inf, False), (99.0, 90.0, True), (100.0, 100.0, False)],
)
def test_what_was_never_reached_is_given_up_sooner(
    elapsed_s: float, idle_s: float, goes_on: bool
) -> None:
    policy = StorageRetryPolicy(budget_s=100.0, reach_s=15.0)
    assert (next_wait_s(policy, 3, elapsed_s, idle_s, 0.5) is not None) is goes_on


def test_advice_is_for_what_was_never_reached() -> None:
    clock = Clock()

    def given_up(is_reached: bool) -> str:
        runs = RequestRetrier(
            POLICY, (OSError,), lambda *_: None, clock=clock, advice=lambda: "look at the cable"
        )
        if is_reached:
            runs.run("read y", lambda: "done")
        with pytest.raises(StoreError) as caught:
            runs.run("read x", Broken(clock, times=math.inf, seconds=60.0))
        return str(caught.value)

    assert given_up(is_reached=False).endswith("down; look at the cable")
    assert given_up(is_reached=True).endswith("down")


def test_most_tries() -> None:
    policy = StorageRetryPolicy(most_tries=3)
    assert next_wait_s(policy, 2, 0.0, 0.0, 0.5) is not None
    assert next_wait_s(policy, 3, 0.0, 0.0, 0.5) is None


@given(
    st.integers(1, 10_000),
    st.floats(0, 1e5),
    st.one_of(st.floats(0, 1e5), st.just(math.inf)),
    st.floats(0, 1),
)
def test_a_wait_is_never_long_nor_negative(
    tries: int, elapsed_s: float, idle_s: float, jitter: float
) -> None:
    wait_s = next_wait_s(POLICY, tries, elapsed_s, idle_s, jitter)
    assert wait_s is None or 0.0 <= wait_s <= POLICY.longest_s


def test_what_passes_is_tried_again_and_counted() -> None:
    clock = Clock()
    runs = retrier(POLICY, clock)
    assert runs.run("read x", Broken(clock, times=3)) == "done"
    assert (runs.counters.requests, runs.counters.retries) == (4, 3)


def test_giving_up_tells_what_how_often_and_why() -> None:
    clock = Clock()
    runs = retrier(POLICY, clock)
    broken = Broken(clock, times=math.inf, seconds=30.0)
    with pytest.raises(StoreError, match=r"read x: given up after 4 tries in 120 s; .*down"):
        runs.run("read x", broken)
    assert broken.tries == 4


def test_progress_of_others_keeps_a_request_going() -> None:
    clock = Clock()
    runs = retrier(POLICY, clock)
    broken = Broken(clock, times=11, seconds=30.0)

    def with_company() -> str:
        runs.run("read y", lambda: "done")
        return broken()

    assert runs.run("read x", with_company) == "done"
    broken = Broken(clock, times=math.inf, seconds=30.0)
    with pytest.raises(StoreError, match="given up after 17 tries in 510 s"):
        runs.run("read x", with_company)


def test_what_is_final_is_raised_at_once() -> None:
    clock = Clock()
    denied = StoreAccessError("no")
    runs = RequestRetrier(POLICY, (OSError,), lambda error, what: denied, clock=clock)
    broken = Broken(clock, times=9)
    with pytest.raises(StoreAccessError) as caught:
        runs.run("read x", broken)
    assert caught.value is denied
    assert isinstance(denied.__cause__, OSError)
    assert broken.tries == 1


def test_other_errors_pass_through_and_passing_ones_do_not() -> None:
    clock = Clock()
    runs = retrier(POLICY, clock)
    with pytest.raises(ZeroDivisionError):
        runs.run("read x", lambda: 1 // 0)
    left = [TransientRequestError("once"), TransientRequestError("twice")]

    def request() -> str:
        if left:
            raise left.pop()
        return "done"

    assert runs.run("read x", request) == "done"


def test_retries_are_logged_but_not_each(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    runs = retrier(POLICY, clock)
    with caplog.at_level(logging.WARNING, "checkpointing"):
        runs.run("read x", Broken(clock, times=5))
        assert len(caplog.messages) == 1
        assert "read x: try 1 failed: OSError: down" in caplog.messages[0]
        clock.now_s += 60
        runs.run("read y", Broken(clock, times=1))
    assert "4 other retries" in caplog.messages[1]


def test_close_wakes_who_waits() -> None:
    runs = RequestRetrier(
        StorageRetryPolicy(first_s=3600.0, longest_s=3600.0, budget_s=1e6),
        (OSError,),
        lambda *_: None,
    )
    trying = threading.Event()
    errors: list[StoreError] = []

    def request() -> None:
        trying.set()
        raise OSError("down")

    def run() -> None:
        try:
            runs.run("read x", request)
        except StoreError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    trying.wait()
    runs.close()
    thread.join()
    assert len(errors) == 1
