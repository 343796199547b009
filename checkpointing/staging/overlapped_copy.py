"""A snapshot that is copied while training goes on, and the verdict on whether it is one state."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from typing import Any

from checkpointing.errors import StageError
from checkpointing.staging.overlap_guard import Versions
from checkpointing.staging.pinned_memory import DeviceCopy
from checkpointing.staging.slot_layout import StagedSnapshot

# An operation that was writing while the last cell was copied raises its tensor's version when it
# is done. In the trainer's own thread nothing is being written; any other thread gives it this long
GRACE_S = 1.0


class Overlap:
    """A snapshot on its way into its slot. `before_step` and `settle` belong to the thread that
    trains; `result` to any."""

    def __init__(
        self,
        staged: StagedSnapshot,
        versions: Versions,
        copying: Future[None] | None,
        on_device: DeviceCopy | None,
        taking: Future[list[int]] | None = None,
        checking: Future[list[str]] | None = None,
    ) -> None:
        """
        Args:
            versions: of what is copied, from before the copies began.
            copying: what is copied by the CPU; None: nothing.
            on_device: what CUDA devices copy; None: nothing.
            taking: fingerprints of what is compared with other ranks' replicas; None: nothing is.
            checking: names of what the CPU's copy has otherwise than it was; None: nothing.
        """
        self._staged, self._copying, self._on_device = staged, copying, on_device
        self._taking, self._checking = taking, checking
        self._versions: Versions | None = versions
        self._torn: list[str] = []
        self._judged = threading.Event()
        self._lock = threading.Lock()
        self.waited_s = 0.0  # seconds that optimizers waited for it

    def before_step(self) -> None:
        """Return when the tensors may change: the CPU waits for its own copies only."""
        if self._on_device is not None:
            self._on_device.hold()
        self._wait_for_cpu()
        self._judge()

    def settle(self) -> None:
        """Wait until all is copied, and judge."""
        self._wait_for_cpu()
        if self._on_device is not None:
            self._on_device.wait()
        self._judge()

    @property
    def fingerprints(self) -> list[int]:
        """Of what is compared, in its order."""
        return self._taking.result() if self._taking is not None else []

    def result(self) -> StagedSnapshot:
        """The snapshot, once it is whole.

        Raises:
            StageError: it is torn, for something wrote to what was being copied; or not copied.
        """
        if self._copying is not None and (error := self._copying.exception()) is not None:
            raise StageError(f"cannot copy the state: {error}; stage with overlap=False") from error
        if self._on_device is not None:
            self._on_device.wait()
        if not self._judged.wait(GRACE_S):
            self._judge()
        copied = self._checking.result() if self._checking is not None else []
        on_device = self._on_device.changed if self._on_device is not None else []
        if torn := list(dict.fromkeys([*self._torn, *copied, *on_device])):
            raise StageError(_torn(torn))
        return self._staged

    def _wait_for_cpu(self) -> None:
        both: list[Future[Any] | None] = [self._copying, self._taking]
        reading = [one for one in both if one is not None]
        if not all(one.done() for one in reading):
            begun_s = time.monotonic()
            wait(reading)
            self.waited_s += time.monotonic() - begun_s

    def _judge(self) -> None:
        with self._lock:
            if self._versions is not None:
                self._torn = self._versions.changed()
                self._versions = None  # lets go of the tensors
                self._judged.set()


def _torn(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"{names[0]!r}{more} changed while the snapshot was copied, so it mixes two states and is "
        "not used: something other than the optimizers that the stager knows writes to it between "
        "a save and the next step; stage with overlap=False"
    )
