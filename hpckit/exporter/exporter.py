"""The exporter of a node: a thread of its agent that writes a file, answers HTTP requests, or both.

Only one node, the first of the generation, exports the metrics of the whole run; the others need
not read the run's events. At the end of the agent, nothing is left that Prometheus could take for
present values.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hpckit.config.spec import PrometheusSpec
from hpckit.events.event_log import EventLog, EventTail
from hpckit.events.schema import Degraded, DegradedSubject
from hpckit.exporter.exposition import CONTENT_TYPE, MetricSample, exposition
from hpckit.exporter.run_metrics import RunMetrics
from hpckit.ipc.heartbeat_table import Heartbeat
from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import write_text

log = logging.getLogger(__name__)

Slots = Callable[[], Sequence[Heartbeat]]
CLOSE_S = 2.0
"""Seconds to wait for a hanging disk before the agent ends without the exporter."""
PATIENCE_S = 5.0
"""Seconds of silence after which a client's connection is closed."""
STALE_S = 3600.0
"""Seconds without a write after which a file belongs to an agent that was killed."""
_PREFIX, _SUFFIX = "hpckit-", ".prom"


@dataclass(frozen=True)
class _View:
    """Arguments of `Exporter.watch`."""

    slots: Slots
    device: str
    is_first: bool


class Exporter:
    """Exports a node's metrics, from the first call of `watch` on."""

    def __init__(self, spec: PrometheusSpec, run: RunDir, node: int) -> None:
        self._spec, self._run, self._node = spec, run, node
        self._file = file_of(Path(spec.folder), run.name, node) if spec.folder else None
        self._lock = threading.Lock()  # `page`, which may wait for a disk
        self._view = _View(tuple, "cpu", False)
        self._run_state: tuple[EventTail, RunMetrics] | None = None
        self._reported: set[str] = set()
        self._stop = threading.Event()
        self._endpoint: Endpoint | None = None
        self._thread = threading.Thread(target=self._serve, name="exporter", daemon=True)
        self._thread.start()

    def watch(self, slots: Slots, device: str, *, is_first: bool) -> None:
        """Starts to export a generation.

        Args:
            slots: returns the rows of its heartbeat table.
            device: `cpu` or `cuda`.
            is_first: whether this node exports the metrics of the whole run.
        """
        self._view = _View(slots, device, is_first)

    def rest(self) -> None:
        """Ends the export of worker metrics after a generation; those of the run are kept."""
        self._view = replace(self._view, slots=tuple)

    def page(self) -> str:
        """Returns the present metrics as text."""
        view, name = self._view, self._run.name
        samples = [*worker_samples(name, self._node, view.slots(), view.device, time.monotonic())]
        with self._lock:
            if not view.is_first:
                self._run_state = None
            elif self._run_state is None:
                self._run_state = (EventTail(self._run.events), RunMetrics())
            if self._run_state is not None:
                tail, standing = self._run_state
                for event in tail.read():
                    standing.take(event)
                samples += standing.samples(name, time.time())
        return exposition(samples)

    def close(self) -> None:
        """Ends the export and removes this node's file."""
        self._stop.set()
        self._thread.join(CLOSE_S)

    def _serve(self) -> None:
        self._remove_stale()
        self._start_endpoint()
        while not self._stop.wait(self._spec.every_s):
            self._write()
        if self._endpoint is not None:
            self._endpoint.close()
        if self._file is not None:
            try:
                self._file.unlink(missing_ok=True)
            except OSError as error:
                self._report(f"cannot remove its metrics from {self._file}: {error}")

    def _remove_stale(self) -> None:
        if self._file is not None:
            try:
                remove_stale(self._file.parent)
            except OSError as error:
                self._report(f"cannot write metrics in {self._file.parent}: {error.strerror}")

    def _start_endpoint(self) -> None:
        if self._spec.port is not None:
            try:
                self._endpoint = Endpoint(self._spec.address, self._spec.port, self.page)
            except OSError as error:
                at = f"{self._spec.address}:{self._spec.port}"
                self._report(f"cannot serve metrics at {at}: {error}")

    def _write(self) -> None:
        if self._file is not None:
            try:
                publish(self._file, self.page())
            except OSError as error:
                self._report(f"cannot write metrics in {self._file.parent}: {error.strerror}")

    def _report(self, what: str) -> None:
        """Reports a problem once. `what` must be the same each time, without file names that
        change."""
        if what not in self._reported:
            self._reported.add(what)
            log.warning(what)
            with EventLog(self._run.events, node=self._node) as events:
                events.emit(Degraded(subject=DegradedSubject.METRICS, what=what))


def worker_samples(
    run: str, node: int, slots: Sequence[Heartbeat], device: str, now_s: float
) -> Iterator[MetricSample]:
    """Yields the metrics of the workers that have a heartbeat.

    `device` is `cpu` or `cuda`, and `now_s` is a time of CLOCK_MONOTONIC in seconds.
    """
    where = "gpu" if device == "cuda" else "host"
    for rank, slot in enumerate(slots):
        if slot.beat == 0:
            continue
        labels = (run, str(node), str(rank))
        yield MetricSample("hpckit_worker_step", labels, slot.step)
        age_s = max(0.0, now_s - slot.beat)
        yield MetricSample("hpckit_worker_heartbeat_age_seconds", labels, age_s)
        if slot.memory:
            yield MetricSample(f"hpckit_worker_{where}_memory_peak_bytes", labels, slot.memory)


class Endpoint:
    """An HTTP endpoint that answers GET /metrics in a thread until it is closed.

    Raises:
        OSError: the address is taken, or not of this machine.
    """

    def __init__(self, address: str, port: int, page: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE_S

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "the only page is /metrics")
                    return
                text = page().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Drops the message, as requests do not belong in the agent's log."""

        self._server = ThreadingHTTPServer((address, port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="endpoint", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def file_of(folder: Path, run: str, node: int) -> Path:
    """Returns the file of node `node` of the run, in a folder that the textfile collector of
    node_exporter reads."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", run)
    return folder / f"{_PREFIX}{plain}-n{node}{_SUFFIX}"


def publish(path: Path, text: str) -> None:
    """Writes `text` to `path` atomically and readable for all, as node_exporter is another user.
    The file need not survive the node, so it is not synced to disk. Raises OSError."""
    write_text(path, text, mode=0o644, is_durable=False)


def remove_stale(folder: Path) -> None:
    """Removes files of this user that killed agents left. Raises OSError if there is no such
    folder."""
    for path in [*folder.glob(f"{_PREFIX}*{_SUFFIX}"), *folder.glob(f".{_PREFIX}*{_SUFFIX}.*")]:
        with suppress(OSError):  # another agent removed it first
            about = path.lstat()
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > STALE_S:
                path.unlink()
