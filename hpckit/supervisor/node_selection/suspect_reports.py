"""Records the nodes that a run excludes in the suspect list, for other runs."""

from __future__ import annotations

import getpass
import logging
import threading
import time
from collections.abc import Sequence

from hpckit.events.event_log import read_events
from hpckit.events.schema import Degraded, DegradedSubject, SuspectReported
from hpckit.slurm.node_exclusion import ExcludableNode, excludable_nodes
from hpckit.supervisor.supervised_run import SupervisedRun
from hpckit.suspects.suspect_folder import SuspectFolder, SuspectListError, open_folder
from hpckit.suspects.suspect_hook import run_hook
from hpckit.suspects.suspect_record import SuspectRecord, reportable

log = logging.getLogger(__name__)

GATHER_S = 2.0
"""Seconds in which other nodes may show the same problem, which is then not one of a node."""
END_S = 5.0
"""Seconds that the end of a job waits for the last records."""


class SuspectReporter:
    """Writes records in a thread of its own, so that a file system that hangs stops no run."""

    def __init__(self, supervised: SupervisedRun) -> None:
        self._supervised = supervised
        slurm = supervised.spec.cluster.slurm
        self._spec = slurm.suspects if slurm is not None and supervised.job is not None else None
        self._wanted, self._is_ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="suspects", daemon=True)

    def __enter__(self) -> SuspectReporter:
        if self._spec is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._spec is not None:
            self._is_ending.set()
            self._wanted.set()
            self._thread.join(END_S)

    def report(self) -> None:
        """Has the run's excludable nodes recorded soon. Their events are written already."""
        self._wanted.set()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            self._wanted.wait()
            self._wanted.clear()
            self._is_ending.wait(GATHER_S)
            try:
                self._record()
            except (SuspectListError, OSError) as error:
                self._degrade(f"bad nodes are not recorded in the suspect list: {error}")

    def _record(self) -> None:
        it, spec = self._supervised, self._spec
        assert spec is not None
        assert it.job is not None
        bad = excludable_nodes(read_events(it.run.events, with_steps=False), time.time())
        if not (bad := reportable(bad, it.job.hosts)):
            return
        folder = open_folder(spec)
        for one in folder.view().uncleared(bad):
            record = _record_of(one, it, spec.hours)
            if not folder.has(record):
                self._write(folder, record, spec.hook)

    def _write(self, folder: SuspectFolder, record: SuspectRecord, hook: Sequence[str]) -> None:
        path = folder.write(record)
        log.warning("node %s is on the suspect list: %s", record.node, record.reason)
        self._supervised.events.emit(
            SuspectReported(
                host=record.node, problem=record.reason, expires=record.expires, path=str(path)
            )
        )
        if hook and (problem := run_hook(hook, record, folder.path.name)) is not None:
            self._degrade(f"cluster.slurm.suspects.hook failed for {record.node}: {problem}")

    def _degrade(self, what: str) -> None:
        log.warning(what)
        self._supervised.events.emit(Degraded(subject=DegradedSubject.SUSPECT_LIST, what=what))


def _record_of(one: ExcludableNode, it: SupervisedRun, hours: float) -> SuspectRecord:
    return SuspectRecord(
        node=one.host,
        kind="report",
        time=one.time,
        expires=one.time + hours * 3600,
        reason=one.problem,
        is_unhealthy=one.is_unhealthy,
        run=str(it.run.path),
        job=it.job_number or "",
        event="node_unhealthy" if one.is_unhealthy else "node_lost",
        count=one.count,
        user=getpass.getuser(),
    )
