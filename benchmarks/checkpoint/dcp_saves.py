"""torch's distributed checkpoints (DCP) as arms, one for each of its save modes.

All are given the live tensors in one flat dict; the process group
has one rank. The files are fsynced: `FileSystemWriter` does so unless it is told not to.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    AsyncSaveResponse,
    async_save,
    save,
)

from benchmarks.common.training_model import TrainedModel


@contextmanager
def alone() -> Iterator[None]:
    """A process group with only this process, which DCP's asynchronous saves need."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Sync:
    """Saves by `save`: all is written when it returns."""

    name = "torch DCP save"

    def __init__(self, folder: Path, trained: TrainedModel) -> None:
        self._folder, self._trained = folder / type(self).__name__, trained
        self._saves = 0

    @property
    def _path(self) -> Path:
        return self._folder / str(self._saves)

    def save(self) -> None:
        self._saves += 1
        save(dict(self._trained.tensors), storage_writer=FileSystemWriter(self._path))

    def before_step(self) -> None: ...

    def is_done(self) -> bool:
        return True

    def wait(self) -> None: ...

    def load(self) -> None:
        load(dict(self._trained.tensors), storage_reader=FileSystemReader(self._path))

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None: ...


class Async(Sync):
    """Saves by `async_save` in a thread; the default stager allocates memory each time."""

    name = "torch DCP async, thread"
    kind = AsyncCheckpointerType.THREAD
    staging: Mapping[str, bool] | None = None  # options of a stager that is kept; None: none is

    def __init__(self, folder: Path, trained: TrainedModel) -> None:
        super().__init__(folder, trained)
        is_on_gpu = any(tensor.is_cuda for tensor in trained.tensors.values())
        self._stager = None
        if self.staging is not None:
            self._stager = DefaultStager(_options(is_on_gpu=is_on_gpu, **self.staging))
        self._saved: Future[Any] = Future()
        self._staged: Future[Any] | None = None

    def save(self) -> None:
        self._saves += 1
        answer = async_save(
            dict(self._trained.tensors),
            storage_writer=FileSystemWriter(self._path),
            async_checkpointer_type=self.kind,
            async_stager=self._stager,
        )
        if isinstance(answer, AsyncSaveResponse):
            self._staged, self._saved = answer.staging_completion, answer.upload_completion
        else:
            self._saved = answer

    def before_step(self) -> None:
        if self._staged is not None:
            self._staged.result()

    def is_done(self) -> bool:
        return self._saved.done()

    def wait(self) -> None:
        self._saved.result()

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()


class KeptAsync(Async):
    """The same with a stager that keeps its memory."""

    name = "torch DCP async, thread, kept stager"
    staging = MappingProxyType({})


class ProcessAsync(Async):
    """Saves in another process, which reads the stager's memory."""

    name = "torch DCP async, process"
    kind = AsyncCheckpointerType.PROCESS
    staging = MappingProxyType({"use_shared_memory": True})


class OverlappedThreadAsync(Async):
    """Saves in a thread, and another thread copies."""

    name = "torch DCP async, thread, staging thread"
    staging = MappingProxyType({"use_async_staging": True})


class OverlappedAsync(Async):
    """The same, but a thread of the trainer copies."""

    name = "torch DCP async, process, staging thread"
    kind = AsyncCheckpointerType.PROCESS
    staging = MappingProxyType({"use_shared_memory": True, "use_async_staging": True})


def _options(
    *, is_on_gpu: bool, use_shared_memory: bool = False, use_async_staging: bool = False
) -> StagingOptions:
    """Returns the options of a stager; on a GPU, it copies into pinned memory without blocking."""
    return StagingOptions(
        use_pinned_memory=is_on_gpu,
        use_shared_memory=use_shared_memory,
        use_async_staging=use_async_staging,
        use_non_blocking_copy=is_on_gpu,
    )
