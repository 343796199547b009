"""Shards that commands write: refused by default, indexed and cached where they are allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import webdataset as wds

from data import DataError, IndexingError, Loader, Sources, from_wds, open_dataset
from tests.integration.cli.data_commands import EACH, SHARDS

EVERYTHING = [f"{number:03d}" for number in range(SHARDS * EACH)]


@pytest.fixture(autouse=True)
def _indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


def test_they_are_read_by_a_loader(local: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = f"pipe:echo >>{log}; cat {local}/s-{{00..{SHARDS - 1:02d}}}.tar | cat"
    dataset = open_dataset(
        [command], cache=tmp_path / "c", cache_bytes=10**9, sources=Sources(pipes="shell")
    )
    for _ in range(2):
        loader = Loader(dataset, global_batch=10, epochs=1)
        assert sorted(key for batch in loader for key in batch.keys) == EVERYTHING
        loader.close()
        dataset.close()
    assert len(log.read_text()) == 2 * SHARDS, "once to index and once into the cache"


def test_a_pipeline_keeps_them(local: Path, tmp_path: Path) -> None:
    urls = [f"pipe:cat {local}/s-{number:02d}.tar" for number in range(SHARDS)]
    pipeline = wds.WebDataset(urls, shardshuffle=False).to_tuple("__key__")
    found = from_wds(
        pipeline, cache=tmp_path / "c", cache_bytes=10**9, sources=Sources(pipes="exec")
    )
    assert [key for (key,) in found] == EVERYTHING


def test_what_cannot_be_says_why(local: Path, tmp_path: Path) -> None:
    url = f"pipe:cat {local}/s-00.tar"
    with pytest.raises(IndexingError, match=r"pipe:cat …: .*allow them with pipes='exec'"):
        open_dataset([url], cache=tmp_path / "c", cache_bytes=10**9)
    with pytest.raises(DataError, match=r"requires a cache.*cache=FOLDER"):
        open_dataset(url, sources=Sources(pipes="exec"))
    with pytest.raises(IndexingError, match=r"pipe:head …, offset 0: cut short"):
        open_dataset(
            [f"pipe:head -c 2000 {local}/s-00.tar"],
            cache=tmp_path / "c",
            cache_bytes=10**9,
            sources=Sources(pipes="exec"),
        )
