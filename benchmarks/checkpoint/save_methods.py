"""The interface of methods that save and load the state of one trainer, and hpckit's method."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any, Protocol

from benchmarks.common.training_model import TrainedModel
from checkpointing import Checkpointer

RUN = "benchmark"


class SaveMethod(Protocol):
    """A method that saves and loads; `wait` is called between two saves."""

    name: str

    def save(self) -> None:
        """Starts a save; returns when training may continue with forward and backward."""

    def before_step(self) -> None:
        """Returns when the state may change."""

    def is_done(self) -> bool:
        """Returns whether the last save has ended."""

    def wait(self) -> None:
        """Returns when the last save has ended."""

    def load(self) -> None:
        """Loads the last save into the state."""

    def clear(self) -> None:
        """Removes saves that are no longer needed."""

    def close(self) -> None: ...


class HpckitSaveMethod:
    """hpckit's method, through shared memory and the service of the node."""

    def __init__(
        self,
        name: str,
        root: Path,
        trained: TrainedModel,
        *,
        restore: bool = True,
        is_fresh: bool = False,
        **options: Any,
    ) -> None:
        """
        Args:
            root: store of this method alone, in which the run is `RUN`.
            restore: whether to restore first, after which the memory of saves is allocated.
            is_fresh: as of `Checkpointer.restore`, for `load`.
            options: of `Checkpointer`.
        """
        self.name, self._trained, self._is_fresh = name, trained, is_fresh
        self._committed = threading.Event()
        self._last: dict[str, dict[str, Any]] = {}  # what was told last, by kind
        self._ckpt = Checkpointer(root, run=RUN, on_event=self._hear, **options)
        self._step = (self._ckpt.restore(trained.state) or 0) if restore else 0

    def save(self) -> None:
        self._step += 1
        self._committed.clear()
        self._ckpt.save(self._step, self._trained.state)

    def before_step(self) -> None:
        """Does nothing, because the hook of the optimizer waits."""
        self._trained.optimizer.step()

    def is_done(self) -> bool:
        return self._committed.is_set()

    def wait(self) -> None:
        self._ckpt.wait()

    def load(self) -> None:
        assert self._ckpt.restore(self._trained.state, is_fresh=self._is_fresh) is not None

    @property
    def tier(self) -> str:
        """Returns the source of the last restored state."""
        return str(self._last["checkpoint_restored"]["tier"])

    def clear(self) -> None: ...

    def close(self) -> None:
        self._ckpt.close()

    def drop(self) -> None:
        """Ends without `close`, so that the service keeps its snapshots."""
        del self._ckpt
        gc.collect()

    def _hear(self, kind: str, **fields: Any) -> None:
        self._last[kind] = fields
        if kind == "checkpoint_committed" and fields["step"] == self._step:
            self._committed.set()
