"""The arms of `store_speed` that write a training state."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from benchmarks.common.machine import touch
from benchmarks.common.stopwatch import Stopwatch
from benchmarks.common.training_state import TrainingState
from benchmarks.store.store_saves import StoreSaves, files_under, whole_pieces
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.part_writer import WriteOptions

FILE_BYTES = 64 << 20
PLAIN_WRITE = "plain write + fsync"
RAW, COMPRESSED, DCP = "raw", "compressed", "dcp"  # folders


class Writers:
    """The arms; each writes the state durably after one more step. The stores keep all saves."""

    def __init__(self, folder: Path, state: TrainingState) -> None:
        self._folder, self._state = folder, state
        self._raw = StoreSaves(folder / RAW, WriteOptions(encoder=ChunkEncoder(None)))
        self._compressed = StoreSaves(folder / COMPRESSED, WriteOptions())
        self._step = self._files = 0
        self.objects: dict[str, int] = {}  # that the last save of each way has made
        ways = {
            PLAIN_WRITE: lambda: write_plainly(state, folder / "plain"),
            "hpckit, raw": lambda: self._save(self._raw),
            "hpckit, compressed": lambda: self._save(self._compressed),
            "torch DCP": self._dcp,
        }
        self.watch = Stopwatch(state.nbytes, ways, self._prepare, self._count)

    def close(self) -> None:
        self._raw.close()
        self._compressed.close()

    def _prepare(self, name: str) -> None:
        self._step += 1
        self._state.step()
        for used in ("plain", DCP):
            shutil.rmtree(self._folder / used, ignore_errors=True)
        self._files = files_under(self._folder)
        os.sync()
        touch(self._state.nbytes * 3 // 2)

    def _count(self, name: str) -> None:
        self.objects[name] = files_under(self._folder) - self._files

    def _save(self, saves: StoreSaves) -> None:
        saves.save(self._step, whole_pieces(self._state.arrays))

    def _dcp(self) -> None:
        save_by_dcp(self._state, self._folder / DCP)


def write_plainly(state: TrainingState, folder: Path) -> None:
    """Writes the state's bytes durably to files of `FILE_BYTES`, without names or hashes."""
    folder.mkdir()
    for number, parts in enumerate(parts_of_files(state)):
        with (folder / str(number)).open("wb", buffering=0) as file:
            for part in parts:
                file.write(part)
            os.fsync(file.fileno())
    _fsync(folder)


def save_by_dcp(state: TrainingState, folder: Path) -> None:
    dcp_save(dict(tensors(state)), storage_writer=FileSystemWriter(folder), no_dist=True)


def tensors(state: TrainingState) -> dict[str, Tensor]:
    """Returns the state as tensors, without a copy."""
    return {name: torch.from_numpy(array) for name, array in state.arrays.items()}


def parts_of_files(state: TrainingState) -> Iterator[list[memoryview]]:
    """Yields the state's bytes in order, as the parts of files of `FILE_BYTES`."""
    parts: list[memoryview] = []
    room = FILE_BYTES
    for array in state.arrays.values():
        view = array.reshape(-1).view("u1").data
        while len(view):
            part, view = view[:room], view[room:]
            parts.append(part)
            room -= len(part)
            if not room:
                yield parts
                parts, room = [], FILE_BYTES
    if parts:
        yield parts


def _fsync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
