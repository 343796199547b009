"""Ways to save and load the state of one trainer, all with one face; hpckit's is here."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any, Protocol

from benchmarks.common.training_model import TrainedModel
from checkpointing import Checkpointer

RUN = "benchmark"


class SaveWay(Protocol):
    """One of them. Its saves take turns: `wait` comes between two of them."""

    name: str

    def save(self) -> None:
        """Start to save; returns when training may go on with forward and backward."""

    def before_step(self) -> None:
        """Returns when the state may change."""

    def is_done(self) -> bool:
        """Whether the last save is at its end."""

    def wait(self) -> None:
        """Returns when it is."""

    def load(self) -> None:
        """The last save, into the state."""

    def clear(self) -> None:
        """Remove what was saved, as far as it is of no more use."""

    def close(self) -> None: ...


class HpckitSaveWay:
    """Through shared memory and the node's service."""

    def __init__(
        self, name: str, root: Path, trained: TrainedModel, *, restore: bool = True, **options: Any
    ) -> None:
        """
        Args:
            root: store of this way alone: it goes by `RUN` there.
            restore: as trainers do at their start; it takes the memory for the first save.
            options: of `Checkpointer`.
        """
        self.name, self._trained = name, trained
        self._committed = threading.Event()
        self._last: dict[str, dict[str, Any]] = {}  # what was told last, by kind
        self._ckpt = Checkpointer(root, run=RUN, on_event=self._hear, **options)
        self._step = (self._ckpt.restore(trained.state) or 0) if restore else 0

    def save(self) -> None:
        self._step += 1
        self._committed.clear()
        self._ckpt.save(self._step, self._trained.state)

    def before_step(self) -> None:
        """Its hook does it."""
        self._trained.optimizer.step()

    def is_done(self) -> bool:
        return self._committed.is_set()

    def wait(self) -> None:
        self._ckpt.wait()

    def load(self) -> None:
        assert self._ckpt.restore(self._trained.state) is not None

    @property
    def tier(self) -> str:
        """Where the last state was loaded from."""
        return str(self._last["checkpoint_restored"]["tier"])

    def clear(self) -> None: ...

    def close(self) -> None:
        self._ckpt.close()

    def drop(self) -> None:
        """Instead of `close`: be gone without a goodbye, so that the service keeps what it has."""
        del self._ckpt
        gc.collect()

    def _hear(self, kind: str, **fields: Any) -> None:
        self._last[kind] = fields
        if kind == "checkpoint_committed" and fields["step"] == self._step:
            self._committed.set()
