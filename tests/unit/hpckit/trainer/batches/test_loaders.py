"""Datasets of other formats than tars as those of a run."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import zstandard

from data import Loader
from hpckit.trainer.batches.byte_text import ByteWindow
from hpckit.trainer.batches.loaders import open_mixture
from hpckit.trainer.batches.token_windows import stack
from tests.unit.data.tars import write_tar
from tests.unit.hpckit.specs_and_processes import make_spec


def write_sources(folder: Path) -> dict[str, dict[str, Any]]:
    """Write ten texts in each of several formats: text 3 of source b is "b3"."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = [json.dumps({"text": f"a{n}", "n": n}) for n in range(10)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    table = pa.table({"body": [f"b{n}" for n in range(10)]})
    parquet.write_table(table, folder / "b.parquet")
    tar = write_tar(folder / "c.tar", [(f"{n}.txt", f"c{n}".encode()) for n in range(10)])
    (folder / "c.tar.zst").write_bytes(zstandard.ZstdCompressor().compress(tar.read_bytes()))
    tar.unlink()
    with pa.OSFile(str(folder / "d.arrow"), "wb") as file:
        rows = pa.table({"text": [f"d{n}" for n in range(10)], "n": list(range(10))})
        with pa.ipc.new_stream(file, rows.schema) as writer:
            writer.write_table(rows)
    return {
        "a": {"shards": str(folder / "a.jsonl"), "weight": 1.0, "column": "text"},
        "b": {"shards": str(folder / "b.parquet"), "weight": 1.0},
        "c": {"shards": str(folder / "c.tar.zst"), "weight": 1.0},
        "d": {"shards": str(folder / "d.arrow"), "weight": 1.0},
    }


def test_a_mixture_has_text_of_all_formats(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "data.mixture.sources": write_sources(tmp_path),
        "data.mixture.unit": "samples",
        "data.mixture.block": 40,
        "data.text": "bytes",
        "data.cache": str(tmp_path / "cache"),
        "data.cache_gb": 1,
    }
    stream = open_mixture(make_spec(values, data="mixture"))
    columns = ("text",)
    loader = Loader(stream, global_batch=8, transform=ByteWindow(4, columns), collate=stack)
    texts = [
        bytes(row[row >= 0][:2].tolist()).decode()
        for batch in islice(loader, 5)
        for row in batch.data.tokens.numpy()
    ]
    loader.close()
    assert sorted(texts) == sorted(f"{name}{n}" for name in "abcd" for n in range(10))
