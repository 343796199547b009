"""What is read for arrays that wait reaches them once all of it is checked, and not before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from checkpointing.errors import DamagedError
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import pack_key
from checkpointing.format.tiles import Box, is_on_grid, whole
from checkpointing.store.catalog import newest_first
from checkpointing.store.checkpoint import BoxRead, Checkpoint
from checkpointing.store.read.kept_memory import PAGE, KeptMemory
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write
from tests.integration.checkpoint.store_damage import flip_byte

Arrays = dict[str, NDArray[Any]]

RAW, ENCODED = ChunkEncoder(None), ChunkEncoder()


def _arrays() -> Arrays:
    rng = np.random.default_rng(0)
    return {
        "m/noise": rng.standard_normal((1024, 512), np.float32),  # of several tiles
        "m/ramp": np.repeat(np.arange(1024, dtype=np.float32), 512).reshape(1024, 512),
        "m/small": np.arange(5, dtype=np.float32),
        "m/scalar": np.array(3, np.float32),
    }


def _save(store: Store, arrays: Arrays, encoder: ChunkEncoder) -> None:
    with Session(store, "r") as session:
        save = session.begin(1)
        pieces = [
            TensorPiece(name, "float32", array.shape, (0,) * array.ndim, array)
            for name, array in arrays.items()
        ]
        options = WriteOptions(threads=1, encoder=encoder)
        written = write(store, save, pieces, {}, RunChunkIndex(store, "r").index(), options)
        write_part(store, ManifestHeader(save, 1.0, 1), 0, written)
        commit(store, save, 1, check=session.check)
        session.end(save.manifest())


@pytest.fixture(params=[RAW, ENCODED], ids=["raw", "encoded"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with closing(Store.open(tmp_path, create=True)) as store:
        _save(store, _arrays(), request.param)
    return tmp_path


def _opened(store: Store) -> Checkpoint:
    return Checkpoint(store, newest_first(store, "r")[0].stored)


def _reads(into: Arrays, waits: Callable[[str], bool]) -> list[BoxRead]:
    return [BoxRead(n, whole(a.shape), a, waits(n)) for n, a in into.items()]


@pytest.mark.parametrize("waiting", [set(_arrays()), {"m/noise", "m/scalar"}], ids=["all", "some"])
def test_arrays_that_wait_are_filled_by_deliver(saved: Path, waiting: set[str]) -> None:
    wanted, into = _arrays(), {n: np.full_like(a, -1) for n, a in _arrays().items()}
    with closing(Store.open(saved)) as store:
        content = _opened(store).read_checked(_reads(into, waiting.__contains__))
        for name, array in into.items():
            now = np.full_like(array, -1) if name in waiting else wanted[name]
            assert np.array_equal(array, now)
        content.deliver()
        assert all(np.array_equal(array, wanted[name]) for name, array in into.items())
        into["m/noise"][:] = 7
        content.deliver()
        assert (into["m/noise"] == 7).all(), "a second call does nothing"


def test_a_part_of_an_array_waits(saved: Path) -> None:
    into, wanted = np.zeros((100, 300), np.float32), _arrays()["m/noise"][200:300, 100:400]
    with closing(Store.open(saved)) as store:
        read = BoxRead("m/noise", Box((200, 100), (100, 300)), into, waits=True)
        content = _opened(store).read_checked([read])
        assert not into.any()
        content.deliver()
    assert np.array_equal(into, wanted)


def test_damage_changes_no_array_that_waits(saved: Path) -> None:
    with closing(Store.open(saved)) as store:
        checkpoint = _opened(store)
        for pack in checkpoint.document.packs():
            flip_byte(saved / pack_key(pack), len(b"HPKPACK1"))
        into = {n: np.full_like(a, -1) for n, a in _arrays().items()}
        with pytest.raises(DamagedError):
            checkpoint.read_checked(_reads(into, lambda name: True))
    assert all((array == -1).all() for array in into.values())


def test_kept_memory_begins_at_its_place_in_a_page() -> None:
    memory = KeptMemory(3 * PAGE)
    starts = []
    for size, in_page in ((10, 64), (PAGE, 56), (10, 0)):
        taken = np.frombuffer(memory.take(size, in_page), np.uint8)
        assert taken.nbytes == size
        starts.append(taken.ctypes.data)
        assert starts[-1] % PAGE == in_page
        taken[:] = 1
    assert starts == sorted(starts)
    with pytest.raises(ValueError, match="left"):
        memory.take(3 << 20)


def test_kept_memory_without_a_place_follows_what_was_taken() -> None:
    memory = KeptMemory(1)  # which is rounded up to a huge page
    starts = [np.frombuffer(memory.take(size), np.uint8).ctypes.data for size in (64, 640, 64)]
    assert [start - starts[0] for start in starts] == [0, 64, 704]


@pytest.mark.parametrize("kind", ["alternating", "unaligned"])
def test_encoded_chunks_of_many_sizes_wait_in_memory_of_their_size(
    tmp_path: Path, kind: str
) -> None:
    """Each takes up whole lines of the cache, and not whole pages, of what was counted for it."""
    rows = [1000 + 100 * i for i in range(40)] if kind == "unaligned" else [8192, 64] * 20
    arrays = {f"m/{i}": np.arange(n, dtype=np.float32) // 7 for i, n in enumerate(rows)}
    with closing(Store.open(tmp_path, create=True)) as store:
        _save(store, arrays, ENCODED)
        into = {name: np.zeros_like(array) for name, array in arrays.items()}
        content = _opened(store).read_checked(_reads(into, lambda name: True))
        content.deliver()
    assert all(np.array_equal(into[name], array) for name, array in arrays.items())


@pytest.mark.parametrize(
    ("box", "is_whole_tiles"),
    [
        (Box((0, 0), (10, 7)), True),
        (Box((4, 0), (4, 7)), True),
        (Box((8, 0), (2, 7)), True),
        (Box((4, 0), (3, 7)), False),
        (Box((3, 0), (5, 7)), False),
        (Box((0, 2), (10, 5)), False),
    ],
)
def test_boxes_of_whole_tiles(box: Box, *, is_whole_tiles: bool) -> None:
    assert is_on_grid(box, (10, 7), (4, 7)) is is_whole_tiles
