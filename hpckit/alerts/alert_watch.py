"""Watches the events of a run and has alerts sent about them, in threads of the supervisor's
process: training and the supervisor never wait for them.

The file `alerts.json` of the run directory says up to which event alerts were sent. So the next
supervisor of the run sends those that this one had no time for, as it was killed or had to leave.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hpckit.alerts.alert_delivery import PAUSES_S, AlertDelivery, report_undelivered
from hpckit.alerts.alert_limits import AlertLimits, sent_of_record
from hpckit.alerts.alert_message import AlertMessage, compose_alert
from hpckit.alerts.alert_occasions import AlertOccasion, OccasionFinder
from hpckit.alerts.alert_targets import AlertTarget, alert_targets
from hpckit.config.spec import AlertsSpec, RunSpec
from hpckit.events.event_log import EventLog, EventTail
from hpckit.events.event_validation import read_valid_events
from hpckit.report.overview import Overview, read_verdict
from hpckit.report.progress import build_progress
from hpckit.report.run_state import RunState, is_current
from hpckit.rundir.directory import RunDir
from hpckit.slurm.node_exclusion import excludable_nodes
from hpckit.system.atomic_files import read_json, write_json

log = logging.getLogger(__name__)

TICK_S = 2.0
"""Seconds between two reads of the events; each opens a file on a shared disk."""
END_S = 10.0
"""Seconds that the end of a run waits for its last messages."""
LEAVE_S = 2.0
"""The same for a job that another one follows, which sends what is left."""


@contextmanager
def sent_alerts(
    run: RunDir, spec: RunSpec, events: EventLog, pauses_s: Sequence[float] = PAUSES_S
) -> Iterator[None]:
    """Has alerts about the run sent for the duration of the block, if the spec configures targets.
    The caller holds the run lock. The end of the block takes up to `END_S` seconds."""
    targets = alert_targets(spec.alerts)
    if not targets:
        yield
        return
    watch = AlertWatch(run, spec, targets, events, pauses_s)
    try:
        yield
    finally:
        watch.close()


class AlertWatch:
    """The thread that reads the events of a run, and the deliveries to all targets."""

    def __init__(
        self,
        run: RunDir,
        spec: RunSpec,
        targets: Sequence[AlertTarget],
        events: EventLog,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._run, self._spec, self._events = run, spec, events
        self._targets, self._pauses_s = targets, pauses_s
        self._deliveries: list[AlertDelivery] = []
        self._offsets: dict[str, int] = {}  # of the event of each occasion, by its key
        self._is_final = False
        self._written: Any = None
        self._ending = threading.Event()
        # what was written before this call is of former supervisors
        self._size = run.events.stat().st_size if run.events.exists() else 0
        self._thread = threading.Thread(target=self._watch, name="alerts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits for the last alerts, for `END_S` seconds at most."""
        self._ending.set()
        self._thread.join(END_S + 1.0)
        if self._thread.is_alive():
            log.error("alerts are still being sent, and are given up")

    def _watch(self) -> None:
        try:
            self._serve()
        except Exception:
            log.exception("no further alerts are sent")

    def _serve(self) -> None:
        mark = read_json(self._run.alerts)
        mark = mark if isinstance(mark, dict) else {}
        offset = mark.get("offset")
        seen = offset if isinstance(offset, int) else self._size
        self._deliveries = self._start(mark)
        tail, finder = EventTail(self._run.events), OccasionFinder()
        while True:
            is_last = self._ending.is_set()
            for event in tail.read():
                occasion = finder.find(event)
                if occasion is not None and tail.offset > seen:
                    self._put(occasion, tail.offset)
            if is_last:
                break
            self._write_mark(tail.offset)
            self._ending.wait(TICK_S)
        self._finish(tail.offset)

    def _start(self, mark: dict[str, Any]) -> list[AlertDelivery]:
        records = mark.get("targets")
        records = records if isinstance(records, dict) else {}
        limits = _limits(self._spec.alerts)
        return [
            AlertDelivery(
                target,
                self._compose,
                limits,
                sent_of_record(records.get(target.name)),
                self._events,
                self._pauses_s,
            )
            for target in self._targets
        ]

    def _put(self, occasion: AlertOccasion, offset: int) -> None:
        self._is_final = occasion.state in (RunState.ENDED, RunState.FAILED)
        self._offsets[occasion.key] = min(offset, self._offsets.get(occasion.key, offset))
        for delivery in self._deliveries:
            delivery.put(occasion)

    def _finish(self, offset: int) -> None:
        for delivery in self._deliveries:
            delivery.end()
        until_s = time.monotonic() + (END_S if self._is_final else LEAVE_S)
        left = {one.target.name: one.join(until_s) for one in self._deliveries}
        for name, occasions in left.items():
            if not occasions:
                continue
            if self._is_final:
                why = "it cannot be reached, and the run has ended"
                report_undelivered(self._events, name, occasions, why)
            else:
                log.warning("the next job sends %d alerts to %s", len(occasions), name)
        self._write_mark(offset, is_settled=self._is_final)

    def _write_mark(self, offset: int, *, is_settled: bool = False) -> None:
        """Records the place in the events up to which alerts were sent.

        Args:
            is_settled: whether the alerts that still wait are given up.
        """
        waiting = {one.key for delivery in self._deliveries for one in delivery.waiting()}
        self._offsets = {key: at for key, at in self._offsets.items() if key in waiting}
        if self._offsets and not is_settled:
            offset = min(self._offsets.values()) - 1
        sent = {one.target.name: one.sent.record() for one in self._deliveries}
        mark = {"offset": offset, "targets": sent}
        if mark == self._written:
            return
        try:
            write_json(self._run.alerts, mark)
            self._written = mark
        except OSError as error:
            log.warning("the next job may send some alerts again: %s", error)

    def _compose(self, occasion: AlertOccasion, withheld: int) -> AlertMessage:
        it = overview_after(self._run, self._spec, occasion)
        host, now = socket.gethostname(), time.time()
        return compose_alert(occasion, it, host=host, now=now, withheld=withheld)


def overview_after(run: RunDir, spec: RunSpec, occasion: AlertOccasion) -> Overview:
    """Returns the run after an occasion, from its directory alone: the supervisor itself holds the
    lock, and Slurm is not asked."""
    events = read_valid_events(run).events
    progress, (verdict, damage) = build_progress(events), read_verdict(run)
    state = occasion.state
    if state is RunState.RUNNING and not progress.is_training:
        state = RunState.STARTING
    return Overview(
        run=run,
        spec=spec,
        state=state,
        verdict=verdict if is_current(verdict, progress) else None,
        progress=progress,
        numbers=(),
        jobs=(),
        owner=None,
        problem=damage,
        bad=excludable_nodes(events, time.time()),
    )


def _limits(spec: AlertsSpec) -> AlertLimits:
    return AlertLimits(60 * spec.repeat_minutes, spec.max_per_hour)
