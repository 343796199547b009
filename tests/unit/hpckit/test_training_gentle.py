"""Imports that leave the processor to others, until somebody waits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from hpckit.training.gentle import Gentle


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def work(seconds: float) -> None:
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        pass


def test_it_finds_nothing_and_sleeps_in_proportion(pipe: tuple[int, int]) -> None:
    gentle = Gentle(0.2, pipe[0])
    begun = time.monotonic()
    work(0.1)
    assert gentle.find_spec("anything", None) is None
    assert time.monotonic() - begun >= 0.45, "a fifth of the time is work"


def test_it_stops_for_good_when_it_is_wanted(pipe: tuple[int, int]) -> None:
    gentle = Gentle(0.001, pipe[0])
    os.write(pipe[1], b"{")
    for _ in range(2):
        work(0.05)
        begun = time.monotonic()
        gentle.find_spec("anything", None)
        assert time.monotonic() - begun < 10, "and not the 50 s of that share"
