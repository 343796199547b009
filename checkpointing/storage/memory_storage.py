"""A storage in the memory of this process, for tests; it is lost when the process ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from checkpointing.errors import DamagedError
from checkpointing.storage.interface import Buffer, ObjectInfo
from checkpointing.storage.key_rules import check_key, check_prefix, check_range
from checkpointing.storage.retry import RequestCounters


@dataclass
class _Place:
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_places: dict[str, _Place] = {}
_places_lock = threading.Lock()


class MemoryStorage:
    """A `Storage` in memory. All instances with one URL share their objects."""

    def __init__(self, url: str) -> None:
        self._url, self.counters = url, RequestCounters()
        with _places_lock:
            self._place = _places.setdefault(url, _Place())

    @property
    def url(self) -> str:
        return self._url

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self._make(key, b"".join(parts))

    def create(self, key: str, data: bytes) -> bool:
        return self._make(key, bytes(data), replace=False)

    def replace(self, key: str, data: bytes) -> None:
        self._make(key, bytes(data))

    def get(self, key: str) -> bytes:
        data = self._find(key)
        self.counters.add(requests=1, bytes_in=len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        check_range(start, length)
        data = self._find(key)
        if start + length > len(data):
            raise DamagedError(
                f"{self._url}/{key}: bytes {start} to {start + length} requested, but it ends at "
                "byte "
                f"{len(data)}"
            )
        self.counters.add(requests=1, bytes_in=length)
        return memoryview(data)[start : start + length]

    def list(self, prefix: str) -> list[ObjectInfo]:
        check_prefix(prefix)
        self.counters.add(requests=1)
        with self._place.lock:
            found = sorted((k, *v) for k, v in self._place.objects.items() if k.startswith(prefix))
        return [ObjectInfo(key, len(data), modified) for key, data, modified in found]

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.counters.add(requests=1)
            with self._place.lock:
                self._place.objects.pop(check_key(key), None)

    def close(self) -> None:
        """Does nothing: the objects are kept for the next caller that opens the URL."""

    def _find(self, key: str) -> bytes:
        with self._place.lock:
            found = self._place.objects.get(check_key(key))
        if found is None:
            raise FileNotFoundError(f"read {self._url}/{key}: no such object")
        return found[0]

    def _make(self, key: str, data: bytes, *, replace: bool = True) -> bool:
        check_key(key)
        self.counters.add(requests=1, bytes_out=len(data))
        with self._place.lock:
            if replace or key not in self._place.objects:
                self._place.objects[key] = (data, time.time())
            return self._place.objects[key][0] == data
