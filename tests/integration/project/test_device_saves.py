"""benchmarks.device.device_saves on a CPU: what its times include, and that saves write all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.checkpoint.dcp_saves import alone
from benchmarks.device.device_saves import DeviceBench, state_on


class NotedBench(DeviceBench):
    """Notes what is waited for."""

    def __init__(self, folder: Path) -> None:
        self.noted: list[str] = []
        device = torch.device("cpu")
        self.trained = state_on(device, 1 << 20, 64)
        super().__init__(self.trained, folder, device)

    def _compute(self) -> None:
        self.noted.append("compute")

    def _synchronize(self) -> None:
        self.noted.append("all streams")

    def _await_training(self) -> None:
        self.noted.append("stream that trains")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[NotedBench]:
    with alone():
        found = NotedBench(tmp_path)
        yield found
        found.close()


def test_a_copy_that_overlaps_is_not_waited_for_outside_of_the_times(bench: NotedBench) -> None:
    arms = bench.save_arms()
    for name in ("hpckit, overlapped", "torch DCP async, thread, staging thread"):
        bench.noted.clear()
        assert arms[name]() > 0
        after_call = ["compute", "stream that trains", "stream that trains"]
        assert bench.noted == ["all streams", *after_call]
        assert len(bench.beside_s[name]) == 1


def test_each_save_writes_the_state(bench: NotedBench, tmp_path: Path) -> None:
    """No save refers to chunks of an earlier one, whose time would be that of hashes alone."""
    save, sizes = bench.save_arms()["hpckit"], [0]
    for _ in range(3):
        save()
        packs = (tmp_path / "blocking").rglob("*.pack")
        sizes.append(sum(path.stat().st_size for path in packs))
    written = [after - before for before, after in pairwise(sizes)]
    assert min(written) > 0.4 * bench.trained.nbytes
    assert len(bench.durable_s["hpckit"]) == 3


def test_restores_are_compared_with_what_was_saved_last(bench: NotedBench) -> None:
    for save in bench.save_arms().values():
        save()
    for restore in bench.restore_arms().values():
        assert restore() > 0
