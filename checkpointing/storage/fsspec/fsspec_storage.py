"""A storage on any file system that fsspec has a driver for."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from checkpointing.errors import DamagedError, StoreError
from checkpointing.storage.exclusive_create import ExclusiveCreator, NoExclusiveCreateError
from checkpointing.storage.fsspec.call_deadlines import FsspecCalls
from checkpointing.storage.fsspec.fsspec_errors import answer_of, classify
from checkpointing.storage.interface import Buffer, ObjectInfo
from checkpointing.storage.key_rules import check_key, check_prefix, check_range
from checkpointing.storage.posix.durable_files import is_temporary
from checkpointing.storage.retry import (
    RequestCounters,
    RequestRetrier,
    StorageRetryPolicy,
    TransientRequestError,
    unreached,
)
from checkpointing.storage.s3.s3_errors import ExpiredCredentialsError, S3ErrorKind, kind_of

T = TypeVar("T")

_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
_BATCH = 100  # number of concurrent deletes
_CONFLICT, _EXISTS, _RANGE = 409, 412, 416


@dataclass(frozen=True)
class DriverTraits:
    """The properties of a driver.

    Attributes:
        whole: whether an object appears only with its last byte; otherwise it is written under a
            temporary name and moved.
        exclusive: whether its mode="create" is one atomic operation of the server.
        write: additional arguments of its pipe_file.
        read: additional arguments of its cat_file, for whole objects.
    """

    whole: bool
    exclusive: bool
    write: Mapping[str, Any]
    read: Mapping[str, Any]


@dataclass(frozen=True)
class CallDeadlines:
    """The deadlines of calls, in seconds."""

    small: float = 30.0
    large: float = 150.0


class FsspecStorage:
    """A `Storage` of the objects under one path of an fsspec file system.

    Whether an object is durable once it is written depends on the server: fsspec has no way to ask
    for it.
    """

    def __init__(
        self,
        calls: FsspecCalls,
        root: str,
        url: str,
        traits: DriverTraits,
        *,
        policy: StorageRetryPolicy | None = None,
        deadlines: CallDeadlines | None = None,
        server: str = "",
    ) -> None:
        """
        Args:
            server: name of the server, for messages; "" where only the driver knows it.
        """
        self._calls, self._url, self._traits = calls, url.rstrip("/"), traits
        self._root = root.rstrip("/")
        self._deadlines = deadlines or CallDeadlines()
        # a driver may raise anything; errors that `classify` does not know become a StoreError
        self._retrier = RequestRetrier(
            policy or StorageRetryPolicy(),
            (Exception,),
            classify,
            advice=lambda: unreached(server or url),
        )
        native = self._create if traits.exclusive else None
        self._exclusive = ExclusiveCreator(self, native, probe=True)

    @property
    def url(self) -> str:
        return self._url

    @property
    def counters(self) -> RequestCounters:
        return self._retrier.counters

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self._write("write", key, b"".join(parts))

    def create(self, key: str, data: bytes) -> bool:
        return self._exclusive.create(check_key(key), data)

    def replace(self, key: str, data: bytes) -> None:
        self._write("replace", key, bytes(data))

    def get(self, key: str) -> bytes:
        data = self._run("read", check_key(key), lambda: self._get(key))
        self.counters.add(bytes_in=len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        check_range(start, length)
        check_key(key)
        try:
            data = self._run("read", key, lambda: self._get_range(key, start, length))
        except StoreError as error:
            answer = answer_of(error)
            if answer is None or answer.status != _RANGE:
                raise
            data = None
        if data is None or len(data) < length:
            raise DamagedError(
                f"{self._url}/{key}: bytes {start} to {start + length} requested, but it ends "
                "before"
            )
        self.counters.add(bytes_in=length)
        return data

    def list(self, prefix: str) -> list[ObjectInfo]:
        check_prefix(prefix)
        found = self._run("list", prefix, lambda: self._find(prefix))
        return sorted(found, key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        rest = [check_key(key) for key in keys]
        for start in range(0, len(rest), _BATCH):
            batch = rest[start : start + _BATCH]
            self._run("remove", f"{batch[0]} and others", partial(self._remove, batch))

    def close(self) -> None:
        self._retrier.close()
        self._calls.close()

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _run(self, verb: str, key: str, call: Callable[[], T]) -> T:
        what = f"{verb} {self._url}/{key}"
        try:
            return self._retrier.run(what, call)
        except ExpiredCredentialsError:
            self._calls.close()  # a new file system reads the credentials again
            return self._retrier.run(what, call)

    def _seconds(self, size: int) -> float:
        return self._deadlines.large if size >= 4 << 20 else self._small_s()

    def _small_s(self) -> float:
        """Returns the deadline of a small call, shorter than usual while no call was ever
        answered."""
        return self._retrier.try_s(self._deadlines.small)

    def _whole_s(self) -> float:
        """Returns the deadline of a call for an object or a listing of unknown size."""
        return self._retrier.try_s(self._deadlines.large)

    def _write(self, verb: str, key: str, data: bytes) -> None:
        once = self._pipe if self._traits.whole else self._pipe_and_move
        self._run(verb, check_key(key), lambda: once(key, data))
        self.counters.add(bytes_out=len(data))

    def _pipe(self, key: str, data: bytes, **more: Any) -> None:
        path, seconds = self._path(key), self._seconds(len(data))
        self._calls.run(seconds, "pipe_file", path, data, **self._traits.write, **more)

    def _pipe_and_move(self, key: str, data: bytes) -> None:
        path = self._path(key)
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.{secrets.token_hex(8)}.tmp"
        self._calls.run(self._small_s(), "makedirs", folder, exist_ok=True)
        self._calls.run(self._seconds(len(data)), "pipe_file", temporary, data)
        size = self._calls.run(self._small_s(), "info", temporary)["size"]
        if size != len(data):
            raise TransientRequestError(f"{size} of {len(data)} bytes arrived")
        self._calls.run(self._small_s(), "mv", temporary, path)

    def _create(self, key: str, data: bytes) -> bool:
        holds = self._run("create", key, lambda: self._create_once(key, data))
        self.counters.add(bytes_out=len(data))
        return holds

    def _create_once(self, key: str, data: bytes) -> bool:
        try:
            self._pipe(key, data, mode="create")
        except Exception as error:
            answer = answer_of(error)
            if answer is not None and kind_of(answer) is S3ErrorKind.UNSUPPORTED:
                raise NoExclusiveCreateError(f"it answers {answer}") from error
            if not _is_there(error):
                raise
            try:
                # maybe created by an earlier try whose reply was lost
                return self._get(key) == data
            except FileNotFoundError:
                raise TransientRequestError("removed during the request") from error
        return True

    def _get(self, key: str) -> bytes:
        path = self._path(key)
        return bytes(self._calls.run(self._whole_s(), "cat_file", path, **self._traits.read))

    def _get_range(self, key: str, start: int, length: int) -> bytes | None:
        path = self._path(key)
        if length == 0:
            size: int = self._calls.run(self._small_s(), "info", path)["size"]
            return b"" if start <= size else None
        seconds = self._seconds(length)
        # passed by keyword, because drivers differ in the second argument
        return bytes(self._calls.run(seconds, "cat_file", path, start=start, end=start + length))

    def _find(self, prefix: str) -> Sequence[ObjectInfo]:
        root = f"{self._root}/"
        try:
            found: dict[str, Any] = self._calls.run(
                self._whole_s(), "find", f"{root}{prefix}".rstrip("/"), detail=True
            )
        except FileNotFoundError as error:
            answer = answer_of(error)
            if answer is not None and answer.code == "NoSuchBucket":
                raise
            return []
        entries = []
        for path, info in found.items():
            key = path.removeprefix(root)
            if info["type"] == "file" and path.startswith(root) and key.startswith(prefix):
                entries.append(ObjectInfo(key, info["size"], modified_of(info, path)))
        return [entry for entry in entries if not is_temporary(entry.key.rpartition("/")[2])]

    def _remove(self, batch: Sequence[str]) -> None:
        paths = [(self._path(key),) for key in batch]
        try:
            self._calls.each(self._deadlines.large, "rm_file", paths)
        except FileNotFoundError:
            for path in paths:
                self._remove_one(*path)

    def _remove_one(self, path: str) -> None:
        try:
            self._calls.run(self._small_s(), "rm_file", path)
        except FileNotFoundError as error:
            answer = answer_of(error)
            if answer is not None and answer.code == "NoSuchBucket":
                raise


def modified_of(info: Mapping[str, Any], path: str) -> float:
    """Returns when a file was last written, as Unix time in seconds, from the driver's info about
    it.

    Raises:
        StoreError: the info has no such time.
    """
    for name in _TIMES:
        value = info.get(name)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float):
            return float(value)
    raise StoreError(f"{path}: its driver reports no modification time, which a store needs")


def _is_there(error: Exception) -> bool:
    answer = answer_of(error)
    if answer is not None:
        return answer.status == _EXISTS
    return isinstance(error, FileExistsError)
