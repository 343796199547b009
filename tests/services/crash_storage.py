"""A storage that dies at a chosen step: for the matrix of crashes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, NoReturn

from checkpointing.storage import Buffer, ObjectInfo, Storage


def exit_at_once() -> NoReturn:
    """As SIGKILL would: nothing is flushed, closed or given back."""
    os._exit(9)


class CrashStorage:
    """A `Storage` that kills its process at one change of what it holds.

    A change is one put, create or replace, or one key of a delete. They are counted from 0 in the
    order in which they begin; `changes` says how many there were, so that a run with
    `kill_at=-1`, which never kills, tells how large the matrix is.

    Args:
        kill: must not return. Where it raises, as SystemExit, every later call raises too: the
            process counts as dead.
    """

    def __init__(
        self,
        inner: Storage,
        kill_at: int,
        when: Literal["before", "after"],
        kill: Callable[[], NoReturn] = exit_at_once,
    ) -> None:
        self.inner, self.kill_at, self.when, self.kill = inner, kill_at, when, kill
        self.changes: list[str] = []  # "<operation> <key>" of each that began
        self._dead = False
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self.inner.url

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self._change(f"put {key}", lambda: self.inner.put(key, parts))

    def create(self, key: str, data: bytes) -> bool:
        made: list[bool] = []
        self._change(f"create {key}", lambda: made.append(self.inner.create(key, data)))
        return made[0]

    def replace(self, key: str, data: bytes) -> None:
        self._change(f"replace {key}", lambda: self.inner.replace(key, data))

    def get(self, key: str) -> bytes:
        self._check()
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        self._check()
        return self.inner.get_range(key, start, length)

    def list(self, prefix: str) -> list[ObjectInfo]:
        self._check()
        return self.inner.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._change(f"delete {key}", partial(self.inner.delete, [key]))

    def close(self) -> None:
        self.inner.close()

    def _change(self, name: str, do: Callable[[], None]) -> None:
        self._check()
        with self._lock:
            number = len(self.changes)
            self.changes.append(name)
        if number == self.kill_at and self.when == "before":
            self._die()
        do()
        if number == self.kill_at and self.when == "after":
            self._die()

    def _check(self) -> None:
        if self._dead:
            self.kill()

    def _die(self) -> NoReturn:
        self._dead = True
        self.kill()
