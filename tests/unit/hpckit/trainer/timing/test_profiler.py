"""Traces of the steps that were asked for, readable, and a table."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from hpckit.config.spec import ProfileSpec
from hpckit.events.schema import Event
from hpckit.trainer.timing.profiler import Profiler


def play(folder: Path, first: int, last: int, start: int | None = 3, steps: int = 2) -> list[Event]:
    """Each step multiplies a matrix of its own size."""
    told: list[Event] = []
    profiler = Profiler(
        ProfileSpec(start=start, steps=steps, costs=False), folder, "rank0", told.append
    )
    for step in range(first, last + 1):
        profiler.begin_step(step)
        matrix = torch.ones(step, step)
        _ = matrix @ matrix
    profiler.close()
    return told


def products(folder: Path) -> list[int]:
    """Sizes of the matrices that were multiplied while it traced."""
    with gzip.open(folder / "rank0.pt.trace.json.gz") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return [e["args"]["Input Dims"][0][0] for e in events if e.get("name") == "aten::mm"]


def test_the_steps_that_were_asked_for_are_traced_and_no_others(tmp_path: Path) -> None:
    told = play(tmp_path / "profile", 1, 6)
    assert products(tmp_path / "profile") == [3, 4]
    assert "aten::mm" in (tmp_path / "profile" / "rank0.txt").read_text()
    (event,) = told
    assert (event.kind, event["steps"]) == ("profiled", "3 to 4")


def test_it_ends_with_the_run(tmp_path: Path) -> None:
    play(tmp_path, 1, 4)
    assert products(tmp_path) == [3, 4]


@pytest.mark.parametrize(("first", "start"), [(1, None), (4, 3), (3, 3)])
def test_it_is_off_or_too_late(tmp_path: Path, first: int, start: int | None) -> None:
    assert play(tmp_path / "profile", first, 6, start) == []
    assert not (tmp_path / "profile").exists()


def test_a_trace_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "profile").write_text("a file in the way")
    with caplog.at_level(logging.INFO):
        told = play(tmp_path / "profile", 1, 6)
    assert [event.kind for event in told] == ["degraded"]
    assert "aten::mm" in caplog.text, "the table is in the log"
