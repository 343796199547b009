"""The arms of `store_speed` that read a training state."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from blake3 import blake3
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from benchmarks.common.machine import forget
from benchmarks.common.stopwatch import Stopwatch
from benchmarks.common.training_state import TrainingState
from benchmarks.store.store_writers import COMPRESSED, DCP, RAW, save_by_dcp, tensors
from checkpointing import Checkpoint, Store
from checkpointing.format.object_keys import pack_key
from checkpointing.format.tiles import whole
from checkpointing.store.catalog import committed
from checkpointing.store.checkpoint import BoxRead
from checkpointing.store.inspection.integrity_check import verify

PLAIN_READ = "plain read"
_PIECE = 1 << 20


class Readers:
    """The arms; each reads the last save that its counterpart in `Writers` has written."""

    def __init__(self, folder: Path, state: TrainingState) -> None:
        self._folder, self._state = folder, state
        if not (folder / DCP).is_dir():
            save_by_dcp(state, folder / DCP)
        packs = _newest(folder / RAW).document.packs()
        self._files = [folder / RAW / pack_key(pack) for pack in packs]
        most = max(path.stat().st_size for path in self._files)
        self._buffer = np.zeros(most, np.uint8).data
        self._pages = memoryview(mmap.mmap(-1, most))
        plain = {PLAIN_READ: lambda: self._plain(self._buffer)}
        more = {
            "plain read, page-aligned": lambda: self._plain(self._pages),
            "plain read in 1 MiB pieces": lambda: self._plain(self._buffer[:_PIECE]),
            "plain read, BLAKE3 of it": self._plain_hashed,
        }
        hpckit = {
            "hpckit verify, raw": lambda: self._verify(RAW),
            "hpckit verify, compressed": lambda: self._verify(COMPRESSED),
            "hpckit restore, raw": lambda: self._restore(RAW),
            "hpckit restore, compressed": lambda: self._restore(COMPRESSED),
            "torch DCP load": self._dcp,
        }
        self.cached = Stopwatch(state.nbytes, plain | more | hpckit)
        self.cold = Stopwatch(state.nbytes, plain | hpckit, before=lambda name: forget(folder))

    def _plain(self, buffer: memoryview) -> None:
        for path in self._files:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass

    def _plain_hashed(self) -> None:
        for path in self._files:
            with path.open("rb", buffering=0) as file:
                count = file.readinto(self._buffer)
            blake3(self._buffer[:count]).digest()

    def _verify(self, name: str) -> None:
        store = Store.open(self._folder / name)
        problems = verify(store, committed(store)[0][0], "full")
        if problems:
            raise AssertionError(f"the save is damaged: {problems[0]}")

    def _restore(self, name: str) -> None:
        arrays = self._state.arrays
        _newest(self._folder / name).read_into(
            BoxRead(tensor, whole(array.shape), array) for tensor, array in arrays.items()
        )

    def _dcp(self) -> None:
        reader = FileSystemReader(self._folder / DCP)
        dcp_load(dict(tensors(self._state)), storage_reader=reader, no_dist=True)


def _newest(folder: Path) -> Checkpoint:
    store = Store.open(folder)
    return Checkpoint(store, store.manifests()[0])
