"""Shards of a cache that are damaged on purpose: whoever reads them finds it, once each."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from data import Loader, open_dataset, pack_folder
from data.read.shards.shard_samples import Check
from hpckit.faults.injection.failing_syscalls import CANNOT
from hpckit.faults.injection.shard_corruption import main


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two of them, of two samples each."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(4):
        (texts / f"{number}.txt").write_text(f"text {number}")
    pack_folder(texts, tmp_path / "shards", suffixes=(".txt",), samples_per_shard=2)
    return tmp_path / "shards"


def epoch(shards: Path, cache: Path, check: Check) -> list[bytes]:
    dataset = open_dataset(shards, cache=cache, cache_bytes=1 << 20, cache_local=True, check=check)
    loader = Loader(dataset, global_batch=4, epochs=1)
    return sorted(sample["txt"] for batch in loader for sample in batch.data)


@pytest.mark.parametrize("check", get_args(Check))
def test_each_shard_is_found_damaged_once_and_no_wrong_sample_is_read(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], check: Check
) -> None:
    cache = tmp_path / "cache"
    assert main([str(cache), "0"]) == 1, "there is no shard yet"
    assert "has no complete shard" in capsys.readouterr().err
    due = epoch(shards, cache, check)
    for number in range(2):
        assert main([str(cache), "1"]) == 0
        assert Path(capsys.readouterr().out.strip()).stat().st_mode & 0o777 == 0o400
        assert epoch(shards, cache, check) == due
        assert len(list((cache / "quarantine").iterdir())) == number + 1
    assert main([str(cache), "1"]) == CANNOT
    assert "already damaged" in capsys.readouterr().err
