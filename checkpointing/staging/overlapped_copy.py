"""Copies a snapshot while training continues, and decides whether it is one consistent state."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from typing import Any

from checkpointing.errors import StageError
from checkpointing.staging.overlap_guard import Versions
from checkpointing.staging.pinned_memory import DeviceCopy
from checkpointing.staging.slot_layout import StagedSnapshot

# Seconds to wait for the version counters: an operation that was writing while the last cell was
# copied increases its tensor's version only when it is done. This happens in other threads only,
# since the training thread itself is not writing.
GRACE_S = 1.0


class Overlap:
    """A snapshot that is being copied into its slot. `before_step` and `settle` are for the
    training thread; `result` may be called from any."""

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
            versions: versions of the copied tensors from before the copies began.
            copying: the CPU's copy; None: there is none.
            on_device: the copy by CUDA devices; None: there is none.
            taking: the fingerprints that are compared with other ranks' replicas; None: there are
                none.
            checking: names of tensors whose copy by the CPU differs from their content before;
                None: this is not checked.
        """
        self._staged, self._copying, self._on_device = staged, copying, on_device
        self._taking, self._checking = taking, checking
        self._versions: Versions | None = versions
        self._torn: list[str] = []
        self._versions_checked = threading.Event()
        self._lock = threading.Lock()
        self.waited_s = 0.0  # seconds that optimizers waited for the copy

    def before_step(self) -> None:
        """Block until the tensors may change; the CPU waits only for its own copies."""
        if self._on_device is not None:
            self._on_device.hold()
        self._wait_for_cpu()
        self._check_versions()

    def settle(self) -> None:
        """Wait until everything is copied, and decide whether the snapshot is whole."""
        self._wait_for_cpu()
        if self._on_device is not None:
            self._on_device.wait()
        self._check_versions()

    @property
    def fingerprints(self) -> list[int]:
        """Returns the fingerprints of the compared cells, in their order."""
        return self._taking.result() if self._taking is not None else []

    def result(self) -> StagedSnapshot:
        """Returns the snapshot, once it is whole.

        Raises:
            StageError: it is torn, because something wrote to the tensors that were being copied;
                or the copy failed.
        """
        if self._copying is not None and (error := self._copying.exception()) is not None:
            raise StageError(f"cannot copy the state: {error}; stage with overlap=False") from error
        if self._on_device is not None:
            self._on_device.wait()
        if not self._versions_checked.wait(GRACE_S):
            self._check_versions()
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

    def _check_versions(self) -> None:
        with self._lock:
            if self._versions is not None:
                self._torn = self._versions.changed()
                self._versions = None  # releases the tensors
                self._versions_checked.set()


def _torn(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"{names[0]!r}{more} changed while the snapshot was copied, so it mixes two states and is "
        "not used: something other than the known optimizers writes to it between a save and the "
        "next step; stage with overlap=False"
    )
