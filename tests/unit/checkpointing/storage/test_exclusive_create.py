from __future__ import annotations

import logging
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from checkpointing.errors import StoreError
from checkpointing.storage.exclusive_create import (
    ExclusiveCreator,
    NoExclusiveCreateError,
    arbitrate,
)
from checkpointing.storage.interface import ObjectInfo
from checkpointing.storage.memory_storage import MemoryStorage
from tests.services.crash_storage import CrashStorage

KEY = "steps/1.manifest"


class Ticking(MemoryStorage):
    """Storage with a clock in whole seconds that goes on with every list."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.now_s = 1_000_000.0
        self.times: dict[str, float] = {}
        self._ticking = threading.Lock()

    def _make(self, key: str, data: bytes, *, replace: bool = True) -> bool:
        with self._ticking:
            self.times[key] = math.floor(self.now_s)
            return super()._make(key, data, replace=replace)

    def list(self, prefix: str) -> list[ObjectInfo]:
        with self._ticking:
            self.now_s += 0.4
            return [replace(e, modified=self.times[e.key]) for e in super().list(prefix)]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ticking:
    monkeypatch.setattr("checkpointing.storage.exclusive_create._POLL_S", 0.0)
    return Ticking(f"memory:/{tmp_path}")


def keys(storage: MemoryStorage) -> list[str]:
    return [entry.key for entry in storage.list("")]


def no_sleep(_: float) -> None:
    pass


def test_arbitration_makes_one(storage: Ticking) -> None:
    assert arbitrate(storage, KEY, b"mine", sleep=no_sleep) is True
    assert arbitrate(storage, KEY, b"mine", sleep=no_sleep) is True
    assert arbitrate(storage, KEY, b"other", sleep=no_sleep) is False
    assert storage.get(KEY) == b"mine"
    assert keys(storage) == [KEY]


def test_of_many_one_wins(storage: Ticking) -> None:
    writers, rounds = 12, 30
    barrier = threading.Barrier(writers)

    def create(writer: int, key: str) -> bool:
        barrier.wait()
        return arbitrate(storage, key, b"%d" % writer, sleep=no_sleep)

    with ThreadPoolExecutor(writers) as pool:
        for turn in range(rounds):
            key = f"steps/{turn}"
            said = list(pool.map(create, range(writers), [key] * writers))
            held = storage.get(key)
            assert said == [b"%d" % writer == held for writer in range(writers)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kill_at", range(12))
def test_a_writer_that_dies_leaves_a_decision_to_be_made(
    storage: Ticking, kill_at: int, when: str
) -> None:
    def die() -> None:
        raise SystemExit(9)

    dying = CrashStorage(storage, kill_at, when, die)  # type: ignore[arg-type]
    try:
        died_first = arbitrate(dying, KEY, b"first", sleep=no_sleep)
    except SystemExit:
        died_first = None
    second = arbitrate(storage, KEY, b"second", sleep=no_sleep)
    held = storage.get(KEY)
    assert held in (b"first", b"second")
    assert second is (held == b"second")
    if died_first is not None:
        assert held == b"first"
    assert arbitrate(storage, KEY, b"third", sleep=no_sleep) is False
    assert storage.get(KEY) == held
    assert keys(storage) == [KEY]


def test_a_slow_winner_and_a_quick_helper_write_the_same(storage: Ticking) -> None:
    """The winner stalls just before it puts the object; another one comes and helps."""
    stalled, go_on = threading.Event(), threading.Event()

    class Stalls(CrashStorage):
        def put(self, key: str, parts: object) -> None:
            if key == KEY:
                stalled.set()
                go_on.wait()
            super().put(key, parts)  # type: ignore[arg-type]

    slow = Stalls(storage, -1, "before")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(arbitrate, slow, KEY, b"first", sleep=no_sleep)
        stalled.wait()
        try:
            second = arbitrate(storage, KEY, b"second", sleep=no_sleep)
            held = storage.get(KEY)
        finally:
            go_on.set()
        assert first.result() is True
    assert second is False
    assert held == b"first"
    assert storage.get(KEY) == b"first"
    assert keys(storage) == [KEY]


def test_a_clock_that_stands_still_is_said(
    storage: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkpointing.storage.exclusive_create._TIMEOUT_S", 0.1)
    monkeypatch.setattr(math, "floor", lambda value: 7)
    with pytest.raises(StoreError, match="modification times stand still"):
        arbitrate(storage, KEY, b"mine", sleep=no_sleep)


def test_the_probe_finds_a_backend_that_only_pretends(
    storage: Ticking, caplog: pytest.LogCaptureFixture
) -> None:
    def pretends(key: str, data: bytes) -> bool:
        storage.replace(key, data)
        return True

    exclusive = ExclusiveCreator(storage, pretends, probe=True)
    with caplog.at_level(logging.WARNING, "checkpointing"):
        assert exclusive.create(KEY, b"mine") is True
        assert exclusive.create(KEY, b"other") is False
    assert storage.get(KEY) == b"mine"
    assert keys(storage) == [KEY]
    assert len(caplog.messages) == 1
    assert storage.url in caplog.messages[0]


def test_an_honest_backend_is_probed_once(storage: Ticking) -> None:
    asked: list[str] = []

    def native(key: str, data: bytes) -> bool:
        asked.append(key)
        return storage.create(key, data)

    exclusive = ExclusiveCreator(storage, native, probe=True)
    assert exclusive.create(KEY, b"mine") is True
    assert exclusive.create(KEY, b"other") is False
    assert asked[2:] == [KEY, KEY]
    assert "~probe-" in asked[0]
    assert asked[0] == asked[1]
    assert keys(storage) == [KEY]


def test_a_probe_that_failed_is_made_again(storage: Ticking) -> None:
    broken = [True]

    def native(key: str, data: bytes) -> bool:
        if broken:
            raise StoreError("out of reach")
        storage.replace(key, data)
        return True

    exclusive = ExclusiveCreator(storage, native, probe=True)
    with pytest.raises(StoreError, match="out of reach"):
        exclusive.create(KEY, b"mine")
    broken.clear()
    assert exclusive.create(KEY, b"mine") is True
    assert exclusive.create(KEY, b"other") is False


@pytest.mark.parametrize("probe", [True, False])
def test_a_backend_that_refuses(storage: Ticking, probe: bool) -> None:
    def refuses(key: str, data: bytes) -> bool:
        raise NoExclusiveCreateError("501")

    exclusive = ExclusiveCreator(storage, refuses, probe=probe)
    assert exclusive.create(KEY, b"mine") is True
    assert exclusive.create(KEY, b"other") is False
