"""A folder of tars is summarised without numpy as it is opened, and only if nothing is unusual."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import open_dataset
from data.errors import IndexFileError
from data.index import column_container
from data.index.index_build import build_index
from data.index.manifest import NAME, open_manifest
from data.index.manifest_rows import KIND
from data.index.manifest_summary import summarise_folder
from data.index.shard_sizes import resized
from tests.unit.data.tars import write_tar

SHARDS = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of indexed shards with 1, 2 and 3 samples."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for n in range(SHARDS):
        write_tar(folder / f"s-{n}.tar", [(f"{n}-{i}.txt", b"x" * i) for i in range(n + 1)])
    build_index(folder)
    return folder


def test_a_summary_is_what_the_dataset_says(folder: Path) -> None:
    found, opened = summarise_folder(folder), open_dataset(folder)
    assert found is not None
    assert len(found) == len(opened) == 6
    assert list(found.manifest.urls) == list(opened.manifest.urls)
    sizes = [opened.manifest.file_bytes(i) for i in range(SHARDS)]
    assert [found.manifest.file_bytes(i) for i in range(SHARDS)] == sizes
    assert (resized(found.manifest), resized(opened.manifest)) == (None, None)
    with (folder / "s-1.tar").open("ab") as shard:
        shard.write(b"more")
    problem = resized(opened.manifest)
    assert problem is not None
    assert resized(found.manifest) == problem


def test_it_takes_no_numpy(folder: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from data.index.manifest_summary import summarise_folder\n"
        f"assert len(summarise_folder(Path({str(folder)!r}))) == 6\n"
        "assert 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def damage(folder: Path) -> None:
    content = bytearray((folder / NAME).read_bytes())
    content[-40] ^= 1
    (folder / NAME).write_bytes(content)


def named(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).touch()


@pytest.mark.parametrize(
    "change",
    [
        *(named("s-9.tar"), named("s.tar.gz"), named("lines.jsonl"), named("state.json")),
        *(named("t.bin"), named("index.json"), named("notes"), damage),
        lambda folder: (folder / "s-2.tar").unlink(),
        lambda folder: (folder / NAME).unlink(),
        lambda folder: (folder / NAME).write_bytes(b""),
        lambda folder: (folder / "s-2.tar").rename(folder / "z.tar"),
    ],
    ids=lambda change: change.__name__,
)
def test_whatever_is_unusual_is_left_to_opening(
    folder: Path, change: Callable[[Path], object]
) -> None:
    change(folder)
    assert summarise_folder(folder) is None


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    "changed",
    [
        *({"samples": ints(1, -2, 3)}, {"samples": ints(1, 2)}, {"samples": ints()}),
        *({"bytes": ints(1, 2**62, 2**62)}, {"bytes": np.arange(3, dtype=np.uint8)}),
        *({"tokens": ints(1, 2)}, {"tokens": ints(-1, 1, 1)}, {"tags": ints(1, 2, 3)}),
        *({"url_at": ints(0, 14, 7, 21)}, {"url_at": ints(0, 7, 14, 22)}),
        *({"urls": ints(*range(21))}, {"hashes": np.zeros(95, np.uint8)}, {"digests": ints()}),
        {"url_at": ints(1, 7, 14, 21)},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_impossible_numbers_are_left_to_opening(folder: Path, changed: dict[str, Any]) -> None:
    right = column_container.load(folder / NAME, KIND)
    packed = column_container.pack(KIND, right.meta, {**right.columns, **changed})
    (folder / NAME).write_bytes(packed)
    assert summarise_folder(folder) is None
    with pytest.raises(IndexFileError):
        open_manifest(folder)
