"""Access to all kinds of sources by one interface, with retries, resumption and limits."""

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

from data.errors import DataError, ObjectChangedError
from data.source.address import Address, masked
from data.source.file import FileSource
from data.source.host_limits import HostLimiter, HostLimiters, Limits
from data.source.parallel_ranges import (
    ByteRange,
    NoThreadError,
    RangeAhead,
    cut_ranges,
    read_in_order,
)
from data.source.pipe import Pipes, PipeSource
from data.source.protocol import (
    Backend,
    FirstTag,
    NoRangesError,
    ObjectVersion,
    PermanentSourceError,
    RangeBackend,
    RefusedError,
    TagMismatchError,
    TransientSourceError,
    is_strong,
)
from data.source.retry import Attempts, SourceRetryPolicy
from data.source.signed_urls import Sign, advice

_log = logging.getLogger(__name__)

_FAILURES = (TransientSourceError, PermanentSourceError, TagMismatchError)
"""What a source raises when a request has failed."""
_MOST_AHEAD = 16
"""Ranges of all downloads of a process that are held in memory: 128 MiB."""
_ahead = threading.BoundedSemaphore(_MOST_AHEAD)

T = TypeVar("T")


@dataclass
class Traffic:
    """The counters of what this process fetched; they are changed under the lock of `Sources`."""

    requests: int = 0
    retries: int = 0
    bytes: int = 0


class Sources:
    """Reads objects of every kind of URL. Thread-safe.

    Args:
        options: by scheme: the fields of `S3AccessOptions` for "s3", as stores of checkpoints take
            them; for "http" `headers`, and `sign`, a function that returns the signed URL to
            request for the URL of a shard, which is called again when that has expired; arguments
            of the fsspec driver for others. Other processes are sent `sign`, which must be
            importable there.
        retry: how long to try again.
        limits: of each host.
        stall_s: seconds without a byte after which a request counts as failed; not for files, see
            `FileSource`.
        pipes: whether `pipe:` URLs are run; see `PipeSource`.

    Raises DataError for unknown options.
    """

    def __init__(
        self,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        retry: SourceRetryPolicy | None = None,
        limits: Limits | None = None,
        stall_s: float = 30.0,
        pipes: Pipes = "refuse",
    ) -> None:
        self._options = {scheme: dict(given) for scheme, given in (options or {}).items()}
        self._retry = retry or SourceRetryPolicy()
        self._limits = limits or Limits()
        self._stall_s = stall_s
        self._pipes = pipes
        self._made: dict[str, Backend] = {}
        self._first_tags: dict[str, FirstTag] = {}
        self._reached: set[str] = set()  # hosts that have answered a request
        self._without_ranges: set[str] = set()  # hosts that send whole objects only
        self._after_fork()
        _all.add(self)
        self._closing = threading.Event()
        self.traffic = Traffic()
        for scheme in self._options:
            self._source(scheme)

    @property
    def runs_pipes(self) -> bool:
        """Whether `pipe:` URLs are run."""
        return self._pipes != "refuse"

    def __reduce__(self) -> "tuple[partial[Sources], tuple[()]]":
        """Pickle as new sources with the same options, including secrets, for another process."""
        anew = partial(
            Sources,
            self._options,
            retry=self._retry,
            limits=self._limits,
            stall_s=self._stall_s,
            pipes=self._pipes,
        )
        return anew, ()

    def stat(self, url: str) -> ObjectVersion:
        """Return the current version of the object. Raises FetchError."""
        return self._run(url, "stat", lambda source: source.stat(url))

    def first_tag(self, url: str) -> FirstTag:
        """Return the tag of the version of an object that this process reads, for `read`."""
        return self._first_tags.setdefault(url, FirstTag())

    def read(self, url: str, start: int, size: int, tag: str | FirstTag | None = None) -> bytes:
        """Read bytes [start, start + size) of the version `tag`.

        Raises FetchError, and ObjectChangedError if the object has another version by now.
        """
        what = f"bytes {start} to {start + size}"
        data = self._run(url, what, lambda source: source.read(url, start, size, tag))
        self._paced(url, len(data))
        return data

    def get(self, url: str) -> bytes:
        """Read a small object. Raises FetchError."""
        data = self._run(url, "all of it", lambda source: b"".join(source.stream(url, 0, None)))
        self._paced(url, len(data))
        return data

    def stream(
        self, url: str, start: int, tag: str | None = None, size: int | None = None
    ) -> Iterator[bytes]:
        """Yield the bytes from `start` to the end; resumes when a connection breaks.

        Args:
            size: the length of the object, if it is known: a large one is then read by several
                ranges at a time, if it has a strong etag, by which they are of one version.

        Raises FetchError, and ObjectChangedError if the object has another version by now.
        """
        address = Address.parse(url)
        source = self._source(address.scheme)
        if isinstance(source, RangeBackend) and tag and is_strong(tag) and size is not None:
            whole = address.host in self._without_ranges
            ranges = cut_ranges(start, size, 1 if whole else self._limits.ranges)
            if len(ranges) > 1:
                try:
                    for piece in self._ranges(address, source, tag, ranges):
                        start += len(piece)
                        yield piece
                    return
                except NoRangesError:
                    self._without_ranges.add(address.host)
        yield from self._streamed(address, start, None, lambda at: source.stream(url, at, tag))

    def _ranges(
        self, address: Address, source: RangeBackend, tag: str, ranges: Sequence[ByteRange]
    ) -> Iterator[bytes]:
        """Yield the bytes of these ranges, of which several are read at a time. Raises as `stream`,
        and NoRangesError."""
        host, ahead = self._host(address), _ahead

        def read(part: ByteRange, slot: ExitStack | None = None) -> Iterator[bytes]:
            begin, end = part

            def stream(at: int) -> Iterator[bytes]:
                return source.stream_range(address.url, at, end, tag)

            return self._streamed(address, begin, end, stream, slot)

        def read_beside(part: ByteRange) -> RangeAhead | None:
            if not ahead.acquire(blocking=False):
                return None
            slot = host.spare_stream()
            if slot is not None:
                try:
                    return RangeAhead(read(part, slot), ahead.release)
                except NoThreadError:
                    slot.close()
            ahead.release()
            return None

        return read_in_order(ranges, read, read_beside, self._limits.ranges)

    def _streamed(
        self,
        address: Address,
        start: int,
        end: int | None,
        stream: Callable[[int], Iterator[bytes]],
        slot: ExitStack | None = None,
    ) -> Iterator[bytes]:
        """Yield what `stream` yields from byte `start` on, and call it again from where it has
        broken. Raises as `Sources.stream`, and NoRangesError.

        Args:
            slot: the slot of the host that the first attempt holds; None: it waits for one.
        """
        host = self._host(address)
        attempts = self._attempts(address, address.url)
        while start != end:
            self._count(requests=1)
            what = f"from byte {start}"
            try:
                with slot or host.stream():
                    slot = None
                    for piece in stream(start):
                        start += len(piece)
                        attempts.progressed()
                        self._note_answer(address, attempts)
                        yield piece
                        self._pace(host, len(piece))
                return
            except _FAILURES as error:
                failure = error
            self._note_failure(attempts, what, failure)

    def close(self) -> None:
        """Stop retrying; waiting threads are woken."""
        self._closing.set()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for another process, which opens connections of its own; given credentials are
        included."""
        names = ("_options", "_retry", "_limits", "_stall_s", "_pipes")
        return {name: self.__dict__[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        options, retry, limits, stall_s, pipes = state.values()
        self.__init__(  # type: ignore[misc]
            options, retry=retry, limits=limits, stall_s=stall_s, pipes=pipes
        )

    def _after_fork(self) -> None:
        """Replace the locks, which other threads may have held when this process was forked."""
        self._lock = threading.Lock()
        self._hosts = HostLimiters(self._limits)

    def _run(self, url: str, what: str, call: Callable[[Backend], T]) -> T:
        address = Address.parse(url)
        source, host = self._source(address.scheme), self._host(address)
        attempts = self._attempts(address, url)
        while True:
            self._count(requests=1)
            try:
                with host.request():
                    result = call(source)
                self._note_answer(address, attempts)
                return result
            except _FAILURES as error:
                failure = error
            self._note_failure(attempts, what, failure)

    def _attempts(self, address: Address, url: str) -> Attempts:
        is_reached = address.host in self._reached
        policy = self._retry if is_reached else self._retry.before_an_answer()
        return Attempts(policy, url, self._closing)

    def _note_answer(self, address: Address, attempts: Attempts) -> None:
        self._reached.add(address.host)
        attempts.policy = self._retry

    def _note_failure(self, attempts: Attempts, what: str, error: Exception) -> None:
        """Log the failure of an attempt, and return when the next one is due.

        It is called outside of the handler of `error`, so that what it raises has no context: that
        may show a URL with its signature. Raises FetchError, ObjectChangedError.
        """
        if not isinstance(error, TransientSourceError):
            raise _final_error(attempts, what, error)
        self._count(retries=1)
        attempts.failed(what, error)
        if attempts.tries in (1, 4) or attempts.tries % 16 == 0:
            _log.warning("%s: trying again: %s", masked(attempts.url), attempts.log[-1])

    def _paced(self, url: str, size: int) -> None:
        self._pace(self._host(Address.parse(url)), size)

    def _pace(self, host: HostLimiter, size: int) -> None:
        self._count(size=size)
        delay_s = host.delay_s(size)
        if delay_s > 0:
            self._closing.wait(delay_s)

    def _count(self, *, requests: int = 0, retries: int = 0, size: int = 0) -> None:
        with self._lock:
            self.traffic.requests += requests
            self.traffic.retries += retries
            self.traffic.bytes += size

    def _host(self, address: Address) -> HostLimiter:
        return self._hosts.of(address.host if address.scheme.startswith("http") else address.scheme)

    def _source(self, scheme: str) -> Backend:
        with self._lock:
            if scheme not in self._made:
                self._made[scheme] = self._make(scheme)
            return self._made[scheme]

    def _make(self, scheme: str) -> Backend:
        given = self._options.get(scheme, {})
        if scheme == "file":
            return FileSource()
        if scheme == "pipe":
            return PipeSource(self._pipes, self._stall_s)
        if scheme in ("s3", "http", "https") and find_spec("obstore") is None:
            raise DataError(f"{scheme}:// needs the package obstore: pip install obstore")
        if scheme == "s3":
            from data.source.s3 import S3Source, parse_options

            return S3Source(self._stall_s, parse_options(given))
        if scheme in ("http", "https"):
            from data.source.http import HttpSource

            both = {**self._options.get("http", {}), **given}
            options = _fields(_HttpOptions, both, scheme)
            return HttpSource(self._stall_s, options.headers, options.sign)
        from data.source.fsspec_source import FsspecSource

        return FsspecSource(self._stall_s, {scheme: given})


_all: "weakref.WeakSet[Sources]" = weakref.WeakSet()


def _after_fork() -> None:
    global _ahead
    _ahead = threading.BoundedSemaphore(_MOST_AHEAD)
    for sources in list(_all):
        sources._after_fork()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True)
class _HttpOptions:
    headers: Mapping[str, str] = field(default_factory=dict)
    sign: Sign | None = None

    def __post_init__(self) -> None:
        given: object = self.sign
        if given is not None and not callable(given):
            kind = type(given).__name__  # the value may be a secret
            raise DataError(f"options of http: sign must be a function of a URL, got a {kind}")


def _fields(kind: Callable[..., T], given: Mapping[str, Any], scheme: str) -> T:
    try:
        return kind(**given)
    except TypeError as error:  # no value is shown, as it may be a secret
        raise DataError(f"options of {scheme}: unknown one among {sorted(given)}") from error


def _final_error(attempts: Attempts, what: str, error: Exception) -> Exception:
    """Return the error to raise."""
    attempts.note(what, error)
    if isinstance(error, TagMismatchError):
        return attempts.error(f"changed while it was being read: {error}", ObjectChangedError)
    todo = advice(attempts.url, error, datetime.now(UTC)) if isinstance(error, RefusedError) else ""
    return attempts.error(f"cannot be fetched: {error}{todo}")
