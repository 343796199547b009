"""What is checked of a store before it is measured."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from checkpointing import Checkpointer
from hpckit.trainer.checkpoint_workload.checkpoint_timing import RUN, check_store


def test_a_store_has_to_be_new_and_to_have_room(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    check_store(str(tmp_path / "new" / "store"), 1 << 20)
    with pytest.raises(RuntimeError, match=f"{tmp_path} has .* GiB free"):
        check_store(str(tmp_path / "new" / "store"), 2 * free)
    with pytest.raises(RuntimeError, match="exists already"):
        check_store(str(tmp_path), 1)


def test_a_run_in_a_bucket_is_not_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = str(tmp_path / "store")
    module = "hpckit.trainer.checkpoint_workload.checkpoint_timing.local_folder"
    monkeypatch.setattr(module, lambda url: None)
    check_store(store, 1)
    checkpointer = Checkpointer(store, run=RUN)
    checkpointer.save(1, {"weights": {"w": torch.ones(3)}})
    checkpointer.close()
    with pytest.raises(RuntimeError, match=f"has a run {RUN} already"):
        check_store(store, 1)
