"""torchsnapshot and torch_checkpointing as arms, if they are installed.

`--peers FOLDER` names a folder that they were installed into, without their dependencies on torch:

    .venv/bin/pip install --no-deps --target FOLDER torchsnapshot torch_checkpointing \\
        aiofiles nest_asyncio 'importlib_metadata<8.6' zipp

Neither of them calls fsync: what they have written is durable some time later. DLRover is left out
because its saves need its own launcher, `dlrover-run`.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.checkpoint.save_methods import SaveMethod
from benchmarks.common.training_model import TrainedModel


class TorchSnapshot:
    """Saves by `Snapshot.async_take`."""

    name = "torchsnapshot async_take"

    def __init__(self, module: ModuleType, folder: Path, trained: TrainedModel) -> None:
        self._module, self._folder, self._trained = module, folder / "torchsnapshot", trained
        self._saves = 0
        self._pending: Any = None

    def save(self) -> None:
        self._saves += 1
        self._pending = self._module.Snapshot.async_take(self._path, self._state())

    def before_step(self) -> None: ...

    def is_done(self) -> bool:
        return bool(self._pending.done())

    def wait(self) -> None:
        self._pending.wait()

    def load(self) -> None:
        self._module.Snapshot(self._path).restore(self._state())

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None: ...

    @property
    def _path(self) -> str:
        return str(self._folder / str(self._saves))

    def _state(self) -> dict[str, Any]:
        return {"state": self._module.StateDict(**self._trained.tensors)}


class TorchCheckpointing:
    """`CheckpointManager`, with its usual asynchronous saves; without O_DIRECT, which fails on file
    systems that want whole blocks."""

    name = "torch_checkpointing"

    def __init__(self, module: ModuleType, folder: Path, trained: TrainedModel) -> None:
        files = importlib.import_module("torch_checkpointing.storage.filesystem")
        storage = files.LocalFileSystemStorageConfig(use_direct_io=False)
        self._manager = module.CheckpointManager(
            module.CheckpointManager.Config(storage_config=storage)
        )
        self._folder, self._trained = folder / "torch_checkpointing", trained
        self._saves = 0
        self._saved: Any = None

    def save(self) -> None:
        self._saves += 1
        self._saved = self._manager.save(self._path, {"state": self._trained.tensors})

    def before_step(self) -> None:
        with self._manager.lock():
            pass

    def is_done(self) -> bool:
        return bool(self._saved.done())

    def wait(self) -> None:
        self._saved.result()

    def load(self) -> None:
        self._manager.load(self._path, into={"state": self._trained.tensors})

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        self._manager.close()

    @property
    def _path(self) -> str:
        return str(self._folder / str(self._saves))


_KNOWN: dict[str, Callable[[ModuleType, Path, TrainedModel], SaveMethod]] = {
    "torchsnapshot": TorchSnapshot,
    "torch_checkpointing": TorchCheckpointing,
}


def more_peers(where: Path | None, folder: Path, trained: TrainedModel) -> list[SaveMethod]:
    """Returns the peers that can be imported, and prints which cannot, and why.

    Args:
        where: a folder that they were installed into; None: only those that are there anyway.
    """
    if where is not None:
        sys.path.append(str(where))  # last: nothing of what hpckit uses comes from there
    found: list[SaveMethod] = []
    for name, peer in _KNOWN.items():
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            print(f"left out: {name} is not installed ({error}); see {__name__}")
            continue
        found.append(peer(module, folder, trained))
    print("left out: DLRover, whose saves need its own launcher")
    return found
