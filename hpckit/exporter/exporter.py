"""The exporter of a node: a thread of its agent that writes a file, answers, or both.

What is of the whole run is told by one node of it, the first of its generation; the others need not
read the run's events. At the end of the agent nothing is left that Prometheus could take for now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpckit.config.spec import PrometheusSpec
from hpckit.events.event_log import EventLog, EventTail
from hpckit.exporter.endpoint import Endpoint
from hpckit.exporter.exposition import exposition
from hpckit.exporter.run_metrics import RunMetrics
from hpckit.exporter.textfile import file_of, publish, remove_stale
from hpckit.exporter.worker_metrics import worker_samples
from hpckit.ipc.heartbeat_table import Heartbeat
from hpckit.rundir.directory import RunDir

log = logging.getLogger(__name__)

Slots = Callable[[], Sequence[Heartbeat]]
CLOSE_S = 2.0
"""Seconds to wait for a disk that hangs, before the agent ends without."""


@dataclass(frozen=True)
class _View:
    """Arguments of `watch`."""

    slots: Slots
    device: str
    is_first: bool


class Exporter:
    """Tells nothing before `watch`."""

    def __init__(self, spec: PrometheusSpec, run: RunDir, node: int) -> None:
        self._spec, self._run, self._node = spec, run, node
        self._file = file_of(Path(spec.folder), run.name, node) if spec.folder else None
        self._one_at_a_time = threading.Lock()  # page, which may wait for a disk
        self._view = _View(tuple, "cpu", False)
        self._told: tuple[EventTail, RunMetrics] | None = None
        self._has_said: set[str] = set()
        self._over = threading.Event()
        self._endpoint: Endpoint | None = None
        self._thread = threading.Thread(target=self._serve, name="exporter", daemon=True)
        self._thread.start()

    def watch(self, slots: Slots, device: str, *, is_first: bool) -> None:
        """A generation begins.

        Args:
            slots: those of its board.
            device: `cpu` or `cuda`.
            is_first: whether this node tells what is of the whole run.
        """
        self._view = _View(slots, device, is_first)

    def rest(self) -> None:
        """The generation is over; what is of the run is told on."""
        self._view = replace(self._view, slots=tuple)

    def page(self) -> str:
        """What there is to tell now."""
        view, name = self._view, self._run.name
        samples = [*worker_samples(name, self._node, view.slots(), view.device, time.monotonic())]
        with self._one_at_a_time:
            if not view.is_first:
                self._told = None
            elif self._told is None:
                self._told = (EventTail(self._run.events), RunMetrics())
            if self._told is not None:
                tail, standing = self._told
                for event in tail.read():
                    standing.take(event)
                samples += standing.samples(name, time.time())
        return exposition(samples)

    def close(self) -> None:
        """Nothing of this node is told any more."""
        self._over.set()
        self._thread.join(CLOSE_S)

    def _serve(self) -> None:
        self._tidy()
        self._answer()
        while not self._over.wait(self._spec.every_s):
            self._write()
        if self._endpoint is not None:
            self._endpoint.close()
        if self._file is not None:
            try:
                self._file.unlink(missing_ok=True)
            except OSError as error:
                self._say(f"its metrics stay in {self._file}: {error}")

    def _tidy(self) -> None:
        if self._file is not None:
            try:
                remove_stale(self._file.parent)
            except OSError as error:
                self._say(f"no metrics in {self._file.parent}: {error.strerror}")

    def _answer(self) -> None:
        if self._spec.port is not None:
            try:
                self._endpoint = Endpoint(self._spec.address, self._spec.port, self.page)
            except OSError as error:
                at = f"{self._spec.address}:{self._spec.port}"
                self._say(f"no metrics at {at}: {error}")

    def _write(self) -> None:
        if self._file is not None:
            try:
                publish(self._file, self.page())
            except OSError as error:
                self._say(f"no metrics in {self._file.parent}: {error.strerror}")

    def _say(self, what: str) -> None:
        """Once: `what` is the same each time, so it names no file that is new each time."""
        if what not in self._has_said:
            self._has_said.add(what)
            log.warning(what)
            with EventLog(self._run.events, node=self._node) as events:
                events.emit("degraded", what=what)
