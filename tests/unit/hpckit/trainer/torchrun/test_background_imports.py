"""Imports that leave the processor to others, until somebody waits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from hpckit.trainer.torchrun.background_imports import BackgroundImportFinder, ProcessorIdleness


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessorIdleness, "are_idle", lambda self: False)


def work(seconds: float) -> None:
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        pass


@pytest.mark.usefixtures("busy")
def test_it_finds_nothing_and_sleeps_in_proportion(pipe: tuple[int, int]) -> None:
    gentle = BackgroundImportFinder(pipe[0], 0.2)
    begun = time.monotonic()
    work(0.1)
    assert gentle.find_spec("anything", None) is None
    assert time.monotonic() - begun >= 0.45, "a fifth of the time is work"


@pytest.mark.usefixtures("busy")
def test_it_stops_for_good_when_it_is_wanted(pipe: tuple[int, int]) -> None:
    gentle = BackgroundImportFinder(pipe[0], 0.001)
    os.write(pipe[1], b"{")
    for _ in range(2):
        work(0.05)
        begun = time.monotonic()
        gentle.find_spec("anything", None)
        assert time.monotonic() - begun < 10, "and not the 50 s of that share"


def test_it_does_not_sleep_while_a_core_is_idle(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessorIdleness, "are_idle", lambda self: True)
    gentle = BackgroundImportFinder(pipe[0], 0.001)
    work(0.05)
    begun = time.monotonic()
    gentle.find_spec("anything", None)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(("idle_s", "are_idle"), [(0.05, False), (0.2, True)])
def test_cores_are_idle_by_what_they_were_lately(
    monkeypatch: pytest.MonkeyPatch, idle_s: float, are_idle: bool
) -> None:
    """Seconds of all cores, in the fifth of a second since it looked last."""
    now, told = iter([100.0, 100.05, 100.2]), iter([7.0, 7.0 + idle_s])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    cores = ProcessorIdleness()
    monkeypatch.setattr(cores, "_read", lambda: next(told))
    assert [cores.are_idle() for _ in range(3)] == [False, False, are_idle]


def test_what_cores_have_idled_is_read_from_the_kernel() -> None:
    before = ProcessorIdleness()._read()
    assert 0 < before <= ProcessorIdleness()._read()
