"""What a restore does at least: the same bytes copied or read into the state by nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common.training_model import TrainedModel
from benchmarks.common.training_state import TrainingState
from benchmarks.store.store_writers import FILE_BYTES, parts_of_files
from checkpointing.format.chunks import checksum
from checkpointing.staging.arena import Arena
from checkpointing.staging.slot_layout import layout
from checkpointing.staging.tensor_copy import PIECE, in_threads
from checkpointing.store.read.kept_memory import KeptMemory

THREADS = max(2, os.cpu_count() or 1)  # as a restore from files has
_CHECKED = 4 << 20  # bytes that are read and then checked, in the processor's cache
Targets = list[tuple[memoryview, memoryview]]  # places in the state, and their checked content


class BareCopies:
    """Copies within memory, from memory that holds the state's content of now."""

    def __init__(self, state: TrainingState, trained: TrainedModel) -> None:
        self._trained = trained
        self._copies = [tensor.clone() for tensor in trained.tensors.values()]
        self._arrays = [array.reshape(-1).view("u1").data for array in state.arrays.values()]
        self._starts, size = layout([len(array) for array in self._arrays])
        self._unmapped = Arena.create(size)
        self._unmapped.prefault()
        for start, array in zip(self._starts, self._arrays, strict=True):
            np.copyto(self._unmapped.view(start, len(array)), np.frombuffer(array, np.uint8))
        self._mapped = Arena.attach(os.dup(self._unmapped.fd))
        self._mapped.map_ahead(0, size)

    def copy(self) -> None:
        """Copies tensor by tensor, with torch's threads."""
        for target, source in zip(self._trained.tensors.values(), self._copies, strict=True):
            target.copy_(source)

    def from_shared_memory(self, *, is_mapped: bool) -> None:
        """Copies as a restore from memory does: out of shared memory, in pieces, in threads."""
        arena = self._mapped if is_mapped else self._unmapped
        in_threads(
            [
                partial(arena.read_into, start + at, into[at : at + PIECE])
                for start, into in zip(self._starts, self._arrays, strict=True)
                for at in range(0, len(into), PIECE)
            ]
        )

    def close(self) -> None:
        self._mapped.close()
        self._unmapped.close()


class BareReads:
    """Reads of files that `write_plainly` has written."""

    def __init__(self, state: TrainingState, folder: Path) -> None:
        self._state, self._folder = state, folder
        self._buffer = np.zeros(FILE_BYTES, np.uint8).data

    def read(self) -> None:
        """Reads straight into the state."""
        for number, parts in enumerate(parts_of_files(self._state)):
            with (self._folder / str(number)).open("rb", buffering=0) as file:
                for part in parts:
                    file.readinto(part)

    def read_one_buffer(self) -> None:
        """Reads into memory that stays in the processor's cache."""
        for path in sorted(self._folder.iterdir()):
            with path.open("rb", buffering=0) as file:
                while file.readinto(self._buffer):
                    pass

    def read_checked(self) -> None:
        """Reads into new memory and computes checksums, in threads, and copies everything into the
        state once the last one is known."""
        files = enumerate(parts_of_files(self._state))
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(_copy, list(pool.map(self._keep, files))):
                pass

    def _keep(self, numbered: tuple[int, Sequence[memoryview]]) -> Targets:
        number, parts = numbered
        memory, kept = KeptMemory(sum(map(len, parts))), Targets()
        with (self._folder / str(number)).open("rb", buffering=0) as file:
            for part in parts:
                for at in range(0, len(part), _CHECKED):
                    target = part[at : at + _CHECKED]
                    held = memory.take(len(target))
                    file.readinto(held)
                    checksum(held)
                    kept.append((target, held))
        return kept


def _copy(kept: Targets) -> None:
    for target, held in kept:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(held, np.uint8))
    kept.clear()
