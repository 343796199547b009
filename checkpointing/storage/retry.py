"""Decides when and for how long requests are retried, and counts the retries."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from checkpointing.errors import StoreError

logger = logging.getLogger("checkpointing")

T = TypeVar("T")
Classify = Callable[[Exception, str], Exception | None]

_LOG_EVERY_S = 10.0
_REASON_CHARS = 300


class TransientRequestError(Exception):
    """A request failed in a way that may be transient; raised by requests themselves."""


@dataclass(frozen=True)
class StorageRetryPolicy:
    """How long to retry one request. Waiting times double from `first_s` to `longest_s`."""

    budget_s: float = 120.0  # while no request of the same storage succeeds
    cap_s: float = 600.0  # even while other requests succeed
    first_s: float = 0.1
    longest_s: float = 15.0
    least_tries: int = 2  # even beyond the budget, since one slow time-out is no reason to give up
    most_tries: int | None = None
    reach_s: float | None = None  # replaces budget_s while no request has been answered yet


def next_wait_s(
    policy: StorageRetryPolicy, tries: int, elapsed_s: float, idle_s: float, jitter: float
) -> float | None:
    """Returns the seconds to wait before the next try; None to give up.

    Args:
        tries: number of failed tries so far, at least 1.
        elapsed_s: seconds since the first try began.
        idle_s: seconds since any request of the same storage succeeded; infinite if none did. While
            others succeed, the storage is busy rather than broken.
        jitter: from [0, 1], so that many writers do not retry at the same moment.
    """
    is_reached = policy.reach_s is None or idle_s < math.inf
    budget_s = policy.budget_s if is_reached else policy.reach_s or 0.0
    left_s = min(budget_s - min(elapsed_s, idle_s), policy.cap_s - elapsed_s)
    if policy.most_tries is not None and tries >= policy.most_tries:
        return None
    if left_s <= 0 and tries >= policy.least_tries:
        return None
    wait_s = jitter * min(policy.longest_s, policy.first_s * 2.0 ** min(tries - 1, 60))
    return wait_s if left_s <= 0 else min(wait_s, left_s)


@dataclass
class RequestCounters:
    """Counters of a storage's requests. Thread-safe through `add`."""

    requests: int = 0  # including retries
    retries: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    waited_s: float = 0.0  # seconds between tries, summed over threads
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(
        self,
        *,
        requests: int = 0,
        retries: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        waited_s: float = 0.0,
    ) -> None:
        with self._lock:
            self.requests += requests
            self.retries += retries
            self.bytes_in += bytes_in
            self.bytes_out += bytes_out
            self.waited_s += waited_s


class RequestRetrier:
    """Runs the requests of one storage. Thread-safe.

    Args:
        catches: exceptions to handle; all others are passed on.
        classify: called with the error and a description of the request. Returns None if the error
            is transient; else the exception to raise.
        advice: added to the message of a request that is given up before this storage has answered
            any: where it was sent to, and what to check.
        say: describes an error in one short line.
    """

    def __init__(
        self,
        policy: StorageRetryPolicy,
        catches: tuple[type[Exception], ...],
        classify: Classify,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        advice: Callable[[], str] = lambda: "",
        say: Callable[[Exception], str] | None = None,
    ) -> None:
        self.policy, self.counters = policy, RequestCounters()
        self._catches, self._classify = catches, classify
        self._clock, self._jitter = clock, jitter
        self._advice, self._say = advice, say or reason
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._answered_s = float("-inf")  # that an object does not exist is an answer, too
        self._logged_s = float("-inf")
        self._unlogged = 0

    @property
    def is_reached(self) -> bool:
        """Whether any request was answered."""
        return self._answered_s > float("-inf")

    def try_s(self, usual_s: float) -> float:
        """Returns the time limit of one try: shorter than usual if the storage would be given up
        soon because it was never reached, so that there is time for two tries."""
        reach_s = self.policy.reach_s
        return usual_s if self.is_reached or reach_s is None else min(usual_s, reach_s / 2)

    def run(self, what: str, call: Callable[[], T]) -> T:
        """Returns the result of `call`, retried until it succeeds.

        Args:
            what: a description of the request and its object, with which every message begins.

        Raises:
            StoreError: the request was given up. Also any exception that `classify` returns.
        """
        began_s, tries = self._clock(), 0
        while True:
            self.counters.add(requests=1)
            try:
                result = call()
            except TransientRequestError as error:
                tries += 1
                self._wait(what, error, tries, began_s)
            except self._catches as error:
                tries += 1
                final = self._classify(error, what)
                if isinstance(final, FileNotFoundError):
                    self._answered_s = self._clock()
                if final is error:
                    raise
                if final is not None:
                    raise final from error
                self._wait(what, error, tries, began_s)
            else:
                self._answered_s = self._clock()
                return result

    def close(self) -> None:
        """Stop retrying from now on, and wake the threads that wait."""
        self._closed.set()

    def _wait(self, what: str, error: Exception, tries: int, began_s: float) -> None:
        now_s = self._clock()
        elapsed_s, idle_s = now_s - began_s, now_s - self._answered_s
        wait_s = next_wait_s(self.policy, tries, elapsed_s, idle_s, self._jitter())
        if wait_s is None or self._closed.is_set():
            advice = "" if self.is_reached else self._advice()
            raise StoreError(
                f"{what}: given up after {tries} tries in {elapsed_s:.0f} s; last error: "
                f"{self._say(error)}{f'; {advice}' if advice else ''}"
            ) from error
        self.counters.add(retries=1, waited_s=wait_s)
        self._log(what, error, tries, wait_s, now_s)
        self._closed.wait(wait_s)

    def _log(self, what: str, error: Exception, tries: int, wait_s: float, now_s: float) -> None:
        with self._lock:
            if now_s - self._logged_s < _LOG_EVERY_S:
                self._unlogged += 1
                return
            more, self._unlogged, self._logged_s = self._unlogged, 0, now_s
        others = f" ({more} other retries since the last such line)" if more else ""
        text = "%s: try %d failed: %s; next in %.1f s%s"
        logger.warning(text, what, tries, self._say(error), wait_s, others)


def unreached(server: str) -> str:
    """Returns advice for when no request was answered."""
    return (
        f"no request to {server} has succeeded: check that the address is right and that this "
        "machine can reach it (network, proxy, VPN, firewall)"
    )


def reason(error: Exception) -> str:
    """Describes an error in one short line."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line[:_REASON_CHARS]}" if line else type(error).__name__
