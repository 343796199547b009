"""What can go wrong with an HTTP request, and the rules that say with which one."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Answer:
    """An S3 error in place of the server's answer; the request does not reach the server."""

    status: int
    code: str
    retry_after_s: int | None = None


@dataclass(frozen=True)
class Reset:
    """The connection is reset (RST) before anything of the request reaches the server."""


@dataclass(frozen=True)
class ResetUpload:
    """Both connections are reset when `after` bytes of the request's body reached the server."""

    after: int


@dataclass(frozen=True)
class LoseReply:
    """The server does all that was asked; its answer is lost in a reset connection."""


@dataclass(frozen=True)
class ResetDownload:
    """The connection is reset after `after` bytes of the answer's body."""

    after: int


@dataclass(frozen=True)
class Truncate:
    """The connection is closed in good order after `after` bytes of the answer's body."""

    after: int


@dataclass(frozen=True)
class Stall:
    """Nothing comes for `seconds` after `after` bytes of the answer's body, then the rest."""

    after: int
    seconds: float


@dataclass(frozen=True)
class Throttle:
    """The answer's body comes no faster than that."""

    bytes_per_s: float


@dataclass(frozen=True)
class Together:
    """The answer's body waits for those of other requests, until they are as many as the barrier
    says."""

    barrier: asyncio.Barrier


@dataclass(frozen=True)
class FlipByte:
    """Byte `at` of the answer's body is inverted."""

    at: int = 0


@dataclass(frozen=True)
class Delay:
    """The request waits `seconds` on its way to the server."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """The request is accepted and not answered for `seconds`, then its connection is reset."""

    seconds: float


Fault: TypeAlias = (
    Answer
    | Reset
    | ResetUpload
    | LoseReply
    | ResetDownload
    | Truncate
    | Stall
    | Throttle
    | Together
    | FlipByte
    | Delay
    | Hang
)

SLOW_DOWN = Answer(503, "SlowDown")
INTERNAL_ERROR = Answer(500, "InternalError")
ACCESS_DENIED = Answer(403, "AccessDenied")
EXPIRED_TOKEN = Answer(403, "ExpiredToken")
EXPIRED_TOKEN_AWS = Answer(400, "ExpiredToken")  # the status that AWS documents
NO_CONDITIONS = Answer(501, "NotImplemented")


@dataclass
class Injection:
    """One rule: which requests meet with `fault`."""

    fault: Fault
    method: str | None
    key: re.Pattern[str]
    skip: int
    times: int | None
    _matched: int = 0

    @property
    def hits(self) -> int:
        """How many requests met with the fault so far."""
        beyond = max(0, self._matched - self.skip)
        return beyond if self.times is None else min(beyond, self.times)

    def meets(self, method: str, target: str) -> bool:
        """Whether the rule is about this request, which is counted, and its turn has come."""
        if self.method not in (None, method) or not self.key.search(target):
            return False
        before = self.hits
        self._matched += 1
        return self.hits > before


@dataclass(frozen=True)
class Request:
    """A request that a proxy saw."""

    method: str
    target: str  # decoded path and query: "/bucket/prefix/key?..."
    fault: Fault | None


@dataclass
class Rules:
    """The rules in force and the requests seen; for use by any thread."""

    _injections: list[Injection] = field(default_factory=list)
    _seen: list[Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def inject(
        self,
        fault: Fault,
        *,
        method: str | None = None,
        key: str = "",
        skip: int = 0,
        times: int | None = None,
    ) -> Injection:
        """Let requests meet with `fault`; where several rules apply, the oldest one does.

        Args:
            method: only of this HTTP method.
            key: only where this regular expression is found in the decoded path and query.
            skip: how many of these go by unharmed first.
            times: how many meet with the fault; None for all that follow.
        """
        injection = Injection(fault, method, re.compile(key), skip, times)
        with self._lock:
            self._injections.append(injection)
        return injection

    def clear(self) -> None:
        """Forget all rules; requests under way are not saved."""
        with self._lock:
            self._injections.clear()

    @property
    def seen(self) -> list[Request]:
        """All requests so far, in the order of their coming."""
        with self._lock:
            return list(self._seen)

    @property
    def counts(self) -> Counter[str]:
        """How many requests there were, by method."""
        return Counter(request.method for request in self.seen)

    def judge(self, method: str, target: str) -> Fault | None:
        """The fault that this request, which is recorded, meets with."""
        with self._lock:
            rules = (rule for rule in self._injections if rule.meets(method, target))
            rule = next(rules, None)
            fault = None if rule is None else rule.fault
            self._seen.append(Request(method, target, fault))
            return fault
