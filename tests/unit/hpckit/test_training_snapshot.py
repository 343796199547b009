"""Without a GPU, running out of memory leaves no snapshot and no trouble."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hpckit.training.snapshot import leave_snapshot, record_allocations


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_on_a_cpu_there_is_none(tmp_path: Path) -> None:
    record_allocations(torch.device("cpu"))
    leave_snapshot(tmp_path / "memory.pickle")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_is_written(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    record_allocations(device)
    held = torch.zeros(2**20, device=device)
    leave_snapshot(tmp_path / "memory.pickle")
    assert (tmp_path / "memory.pickle").stat().st_size > 0
    assert held.is_cuda
