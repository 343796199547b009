"""Where there is a GPU, a snapshot of its memory is left; where there is none, nothing."""

from __future__ import annotations

from pathlib import Path

import torch

from hpckit.trainer.memory.memory_snapshot import record_allocations, write_memory_snapshot


def test_a_gpu_alone_leaves_one(tmp_path: Path) -> None:
    has_gpu, path = torch.cuda.is_available(), tmp_path / "memory.pickle"
    device = torch.device("cuda" if has_gpu else "cpu")
    record_allocations(device)
    held = torch.zeros(2**20, device=device)
    write_memory_snapshot(path)
    assert held.device.type == device.type
    assert [file.stat().st_size > 0 for file in tmp_path.iterdir()] == [True] * has_gpu
