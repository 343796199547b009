"""Retries of requests to sources: when, for how long, and with a record of the error of each
attempt. Requests of checkpoints follow `checkpointing.storage.retry` by fields of the same names;
it is not imported here, as shards anywhere but in S3 are read without `checkpointing`.

Full-jitter exponential back-off, after M. Brooker, "Exponential Backoff And Jitter" (AWS
Architecture Blog, 2015).
"""

import random
import threading
import time
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

from data.errors import FetchError
from data.source.address import masked

_KEPT = 20  # attempts that an error shows: the first and the last ones
_CHARS = 300  # of the text of one attempt


@dataclass(frozen=True)
class SourceRetryPolicy:
    """The limits of retries for one request, or for one stream that brings no new byte."""

    budget_s: float = 120.0
    first_s: float = 0.2
    longest_s: float = 15.0
    least_tries: int = 3  # attempts even past the budget: one slow time-out is no reason to give up
    most_tries: int = 1000  # attempts of one stream, however often it makes a little progress
    reach_s: float | None = None  # replaces budget_s while the host has not answered any request

    def before_an_answer(self) -> "SourceRetryPolicy":
        """Return the policy for a host that has not answered any request yet."""
        if self.reach_s is None:
            return self
        return replace(self, budget_s=self.reach_s, least_tries=min(2, self.least_tries))


def next_wait_s(
    policy: SourceRetryPolicy, failures: int, idle_s: float, jitter: float
) -> float | None:
    """Return the seconds to wait before the next attempt, None to give up.

    Args:
        failures: in a row without a new byte, at least 1.
        idle_s: since the request began or the last new byte came.
        jitter: from [0, 1].
    """
    left_s = policy.budget_s - idle_s
    if left_s <= 0 and failures >= policy.least_tries:
        return None
    wait_s = jitter * min(policy.longest_s, policy.first_s * 2.0 ** min(failures - 1, 60))
    return wait_s if left_s <= 0 else min(wait_s, left_s)


@dataclass
class Attempts:
    """The attempts of one request, and when the next one is due."""

    policy: SourceRetryPolicy
    url: str
    closing: threading.Event = field(default_factory=threading.Event)
    log: list[str] = field(default_factory=list)
    tries: int = 0
    _failures: int = 0
    _began_s: float = field(default_factory=time.monotonic)
    _moved_s: float = field(default_factory=time.monotonic)

    def progressed(self) -> None:
        """Note that a new byte came."""
        self._failures, self._moved_s = 0, time.monotonic()

    def failed(self, what: str, error: Exception) -> None:
        """Record a transient failure, and wait until the next attempt is due.

        Raises FetchError when it is time to give up.
        """
        self._failures += 1
        now_s = time.monotonic()
        self.note(what, error)
        wait_s = next_wait_s(self.policy, self._failures, now_s - self._moved_s, random.random())
        if wait_s is None or self.tries >= self.policy.most_tries:
            spent = f"{self.tries} tries in {now_s - self._began_s:.1f} s"
            raise self.error(f"cannot be fetched, given up after {spent}: {self.log[-1]}")
        if self.closing.wait(wait_s):
            raise self.error("not fetched: the store was closed in the meantime")

    def note(self, what: str, error: Exception) -> None:
        """Record the error of an attempt."""
        self.tries += 1
        line = " ".join(masked(str(error)).split())[:_CHARS]
        at_s = time.monotonic() - self._began_s
        self.log.append(f"{at_s:.1f} s, {what}: {line or type(error).__name__}")
        if len(self.log) > _KEPT:
            del self.log[_KEPT // 2]

    def error(self, problem: str, kind: type[FetchError] = FetchError) -> FetchError:
        """Return the error to raise, with the record of the attempts."""
        return kind(masked(self.url), masked(problem), self.log)


def __getattr__(name: str) -> Any:
    """Return `SourceRetryPolicy` by its earlier name."""
    if name != "Retry":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("Retry is SourceRetryPolicy now", FutureWarning, stacklevel=2)
    return SourceRetryPolicy
