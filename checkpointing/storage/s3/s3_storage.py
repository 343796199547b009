"""A storage on S3 by obstore."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, UnauthenticatedError

from checkpointing.errors import DamagedError, StoreAccessError, StoreError
from checkpointing.storage.exclusive_create import ExclusiveCreator, NoExclusiveCreateError
from checkpointing.storage.interface import Buffer, ObjectInfo
from checkpointing.storage.key_rules import check_key, check_prefix, check_range
from checkpointing.storage.retry import (
    RequestCounters,
    RequestRetrier,
    StorageRetryPolicy,
    TransientRequestError,
    unreached,
)
from checkpointing.storage.s3.obstore_clients import (
    LARGE,
    ObstoreClients,
    answer_of,
    build,
    lacks_credentials,
    said,
)
from checkpointing.storage.s3.s3_errors import (
    ExpiredCredentialsError,
    S3ErrorKind,
    ServerAnswer,
    kind_of,
    to_raise,
)
from checkpointing.storage.s3.s3_options import S3Location, S3StoreOptions, server_of

logger = logging.getLogger("checkpointing")

T = TypeVar("T")

# obstore has one thread pool per process, which a fork loses: the child would wait forever
_used_by: int | None = None  # the process that has the thread pool

_PAGE = 1000  # objects per request of a list, and per request of a delete
_RANGE = 416
_NO_BULK_DELETE = (400, 405, 411, 501)


class S3Storage:
    """A `Storage` of the objects under a prefix of a bucket.

    Every object is written by a single PUT, never a multipart upload: those leave invisible parts
    behind when a writer dies, and some servers ignore conditions on them. Nothing is sent before
    the first request. The server may carry out a `replace` whose reply was lost late, after a newer
    one.
    """

    def __init__(self, place: S3Location, options: S3StoreOptions) -> None:
        """
        Raises:
            StoreError: an option cannot be used.
        """
        options.endpoint_from(os.environ)
        self._place, self._options = place, options
        self._retrier = RequestRetrier(
            StorageRetryPolicy(budget_s=options.budget_s, reach_s=options.reach_s),
            (BaseError, FileNotFoundError),
            self._classify,
            advice=lambda: unreached(server_of(self._clients().endpoint)),
            say=said,
        )
        self._exclusive = ExclusiveCreator(self, self._create, probe=True)
        self._built: ObstoreClients | None = None
        self._built_for_s = 0.0  # time limit of a small request for which they were built, seconds
        self._served = False
        self._bulk_delete = True
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._place.url

    @property
    def counters(self) -> RequestCounters:
        return self._retrier.counters

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        views = [memoryview(part).cast("B") for part in parts]
        size = sum(map(len, views))
        self._run(
            "write",
            check_key(key),
            lambda to: obstore.put(to.for_upload(size), key, views, use_multipart=False),
        )
        self.counters.add(bytes_out=size)

    def create(self, key: str, data: bytes) -> bool:
        return self._exclusive.create(check_key(key), data)

    def replace(self, key: str, data: bytes) -> None:
        self.put(key, [data])

    def get(self, key: str) -> bytes:
        data = self._run("read", check_key(key), lambda by: _get(by, key))
        self.counters.add(bytes_in=len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        check_range(start, length)
        data = self._run("read", check_key(key), lambda by: self._get_range(by, key, start, length))
        self.counters.add(bytes_in=len(data))
        return data

    def list(self, prefix: str) -> list[ObjectInfo]:
        found: list[ObjectInfo] = []
        self._run("list", check_prefix(prefix), lambda by: _list_on(by, prefix, found))
        return sorted(found, key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        rest = [check_key(key) for key in keys]
        for start in range(0, len(rest), _PAGE):
            batch = rest[start : start + _PAGE]
            more = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
            self._run("remove", f"{batch[0]}{more}", partial(self._delete, batch))

    def close(self) -> None:
        self._retrier.close()
        with self._lock:
            self._built = None

    def _create(self, key: str, data: bytes) -> bool:
        holds = self._run("create", key, lambda to: self._create_once(to, key, data))
        self.counters.add(bytes_out=len(data))
        return holds

    def _create_once(self, to: ObstoreClients, key: str, data: bytes) -> bool:
        try:
            obstore.put(to.for_upload(len(data)), key, data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            # maybe created by an earlier try whose reply was lost
            try:
                return _get(to, key) == data
            except FileNotFoundError:
                raise TransientRequestError(
                    f"removed during the request: {answer_of(error)}"
                ) from error
        except BaseError as error:
            answer = answer_of(error)
            if kind_of(answer) is S3ErrorKind.UNSUPPORTED:
                raise NoExclusiveCreateError(f"it answers {answer}") from error
            raise
        return True

    def _get_range(self, by: ObstoreClients, key: str, start: int, length: int) -> memoryview:
        client = by.download if length >= LARGE else by.small
        try:
            if length == 0:
                size = obstore.head(client, key)["size"]
                data = memoryview(b"")
            else:
                data = memoryview(obstore.get_range(client, key, start=start, length=length))
                size = start + len(data)
        except BaseError as error:
            if answer_of(error).status != _RANGE:
                raise
            size, data = 0, memoryview(b"")
        if len(data) < length or size < start:
            raise DamagedError(
                f"{self.url}/{key}: bytes {start} to {start + length} requested, but it ends before"
            )
        return data

    def _delete(self, batch: Sequence[str], by: ObstoreClients) -> None:
        if self._bulk_delete:
            try:
                obstore.delete(by.small, batch)
            except BaseError as error:
                answer = answer_of(error)
                if (
                    answer.status not in _NO_BULK_DELETE
                    or kind_of(answer) is S3ErrorKind.STALE_KEYS
                ):
                    raise
                logger.warning(
                    "%s cannot delete several objects in one request (%s): deleting one by one",
                    self.url,
                    answer,
                )
                self._bulk_delete = False
        if not self._bulk_delete:
            obstore.delete(by.one_by_one, batch)

    def _run(self, verb: str, key: str, call: Callable[[ObstoreClients], T]) -> T:
        what = f"{verb} {self.url}/{key}"
        _check_process(what)
        used = self._clients()
        try:
            result = self._retrier.run(what, lambda: call(used))
        except ExpiredCredentialsError:
            # keys may be rotated during a training, so they are read again
            with self._lock:
                if self._built is used:
                    self._built = None
            fresh = self._clients()
            result = self._retrier.run(what, lambda: call(fresh))
        self._served = True
        return result

    def _clients(self) -> ObstoreClients:
        with self._lock:
            timeout_s = self._retrier.try_s(self._options.timeout_s)
            if self._built is None or self._built_for_s != timeout_s:
                options = replace(self._options, timeout_s=timeout_s)
                self._built = build(self._place, options, os.environ)
                self._built_for_s = timeout_s
            return self._built

    def _classify(self, error: Exception, what: str) -> Exception | None:
        """See `RequestRetrier`."""
        answer = answer_of(error)
        if lacks_credentials(error) and not self._served:
            return StoreAccessError(
                f"{what}: no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "make a profile in ~/.aws, or read public data with options={'anonymous': True}"
            )
        if answer.status is None and isinstance(error, UnauthenticatedError):
            return ExpiredCredentialsError(f"{what}: {answer.text}; renew the credentials")
        if isinstance(error, FileNotFoundError) and not answer.code:
            answer = ServerAnswer(404)
        return to_raise(answer, what)


def _check_process(what: str) -> None:
    global _used_by
    _used_by = _used_by or os.getpid()
    if _used_by != os.getpid():
        raise StoreError(
            f"{what}: this process was forked from one that used S3, which obstore does not "
            "support; start processes by 'spawn' or 'forkserver', or fork before the first request"
        )


def _get(by: ObstoreClients, key: str) -> bytes:
    return obstore.get(by.download, key).bytes().to_bytes()


def _list_on(by: ObstoreClients, prefix: str, found: list[ObjectInfo]) -> None:
    """Add all objects to `found`, beginning after its last one, so that no page is requested
    twice."""
    if any(a.key >= b.key for a, b in pairwise(found)):
        found.clear()  # the server does not list in the order of keys
    last = found[-1].key if found else None
    pages = obstore.list(by.small, prefix.rstrip("/") or None, offset=last, chunk_size=_PAGE)
    for page in pages:
        found += [ObjectInfo(o["path"], o["size"], o["last_modified"].timestamp()) for o in page]
