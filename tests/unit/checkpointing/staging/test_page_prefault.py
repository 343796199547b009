"""Memory that is taken beside the trainer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from checkpointing.errors import StageError
from checkpointing.staging import page_prefault
from checkpointing.staging.arena import Arena
from checkpointing.staging.page_prefault import Prefault
from checkpointing.staging.slot_layout import PAGE

SIZE, FIRST = 40 * PAGE, 10 * PAGE


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    monkeypatch.setattr(page_prefault, "_STEP", 4 * PAGE)
    with Arena.create(SIZE) as made:
        yield made


def taken(arena: Arena) -> int:
    """Bytes that the system has given for it."""
    return os.fstat(arena.fd).st_blocks * 512


class Held:
    """Lets an arena take memory as far as it is told to."""

    def __init__(self, arena: Arena, monkeypatch: pytest.MonkeyPatch, upto: int) -> None:
        self.upto, self.go_on, self.error = upto, threading.Event(), False
        self._take = arena.prefault
        monkeypatch.setattr(arena, "prefault", self.prefault)

    def prefault(self, threads: int, start: int, stop: int) -> None:
        if stop > self.upto:
            assert self.go_on.wait(60.0)
            if self.error:
                raise StageError("not enough host memory")
        self._take(threads, start, stop)


def is_taken(arena: Arena, upto: int) -> bool:
    deadline_s = time.monotonic() + 60.0
    while taken(arena) < upto:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


def test_what_is_waited_for_is_there_before_the_rest(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(arena, monkeypatch, upto=FIRST)
    prefault = Prefault(arena)
    prefault.wait(FIRST)
    assert taken(arena) == FIRST
    held.go_on.set()
    prefault.wait(SIZE)
    assert taken(arena) == SIZE
    prefault.stop()


@pytest.mark.parametrize("asks", [Prefault.begin, lambda prefault: prefault.wait(FIRST)])
def test_nothing_is_taken_before_it_is_asked_for_and_all_afterwards(
    arena: Arena, asks: Callable[[Prefault], None]
) -> None:
    prefault = Prefault(arena)
    time.sleep(0.1)  # to see what it does then
    assert taken(arena) == 0
    asks(prefault)
    assert is_taken(arena, SIZE)
    prefault.stop()


def test_what_is_waited_for_is_taken_with_all_threads(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_prefault, "THREADS", 3)
    steps: list[tuple[int, int]] = []  # where each one ends, and its threads
    monkeypatch.setattr(
        arena, "prefault", lambda threads, start, stop: steps.append((stop, threads))
    )
    prefault = Prefault(arena)
    prefault.wait(FIRST)
    prefault.wait(SIZE)
    assert [threads for stop, threads in steps if stop <= FIRST] == [3, 3, 3]
    prefault.stop()
    began = Prefault(arena)
    steps.clear()
    began.begin()
    while not steps or steps[-1][0] < SIZE:
        time.sleep(0.01)
    assert {threads for _, threads in steps} == {1}
    began.stop()


def test_who_needs_it_is_told_that_there_is_none(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(arena, monkeypatch, upto=FIRST)
    held.error = True
    held.go_on.set()
    prefault = Prefault(arena)
    prefault.wait(FIRST)
    with pytest.raises(StageError, match="not enough host memory"):
        prefault.wait(SIZE)
    prefault.wait(FIRST)
    prefault.stop()


def test_that_there_is_none_is_said_before_anything_needs_it(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held(arena, monkeypatch, upto=FIRST)
    held.error = True
    held.go_on.set()
    prefault = Prefault(arena)
    prefault.begin()
    prefault._thread.join(60.0)
    assert "cannot be allocated, so they will fail: not enough host memory" in caplog.text
    prefault.stop()


def test_it_can_be_stopped(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(arena, monkeypatch, upto=FIRST)
    prefault = Prefault(arena)
    prefault.wait(FIRST)

    def go_on() -> None:
        while not prefault._is_stopped:
            time.sleep(0.01)
        held.go_on.set()

    threading.Thread(target=go_on).start()
    prefault.stop()
    assert taken(arena) < SIZE
    with pytest.raises(StageError, match="released"):
        prefault.wait(SIZE)
