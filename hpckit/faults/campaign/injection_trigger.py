"""A run that is followed by its events, and broken when it has come so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from socket import gethostname

from hpckit.events.event_log import Event, EventTail
from hpckit.faults.campaign.campaign_runs import resume_run
from hpckit.faults.campaign.fault_log import RecordedFault
from hpckit.faults.campaign.fault_schedule import ScheduledFault
from hpckit.faults.fault_plan import (
    OF_SERVICE,
    DrillError,
    DrillKind,
    ImpossibleDrillError,
    plan_drill,
    training_nodes,
)
from hpckit.faults.plan_execution import execute_fault_plan
from hpckit.faults.site_faults import SiteFaultSet
from hpckit.report.overview import Overview, Queue, look
from hpckit.report.run_state import RunState
from hpckit.rundir.directory import RunDir
from hpckit.rundir.supervisor_process import SupervisorError

PATIENCE_S = 300.0
"""Seconds in which a run is to train again after a fault, and to begin, if it has nodes."""
TOLD_S, GONE_S = 30.0, 15.0
_POLL_S, _LOOK_S = 0.1, 2.0
_NOT_NOW = (DrillError, SupervisorError)
_NO_RESTART = (
    *OF_SERVICE,
    *(DrillKind.DAMAGE, DrillKind.MANIFEST, DrillKind.CACHE),
    *(DrillKind.SLOW, DrillKind.WORKER_TERM),
)


class InjectionTrigger:
    """Follows a run by its events, and breaks it."""

    def __init__(self, run: RunDir, site: SiteFaultSet, tell: Callable[[str], None]) -> None:
        """
        Args:
            tell: how far it is, each `TOLD_S`.
        """
        self._run, self._tail = run, EventTail(run.events)
        self._site, self._tell = site, tell
        self._told_s = time.monotonic()
        self._events: list[Event] = []
        self._known = 0
        """Events before the newest fault: of their times, a clock that is set may make anything."""
        self._gone_s = math.inf
        self.refusal = ""
        """Why the newest fault that could not be done at once could not."""

    def strike(self, planned: ScheduledFault) -> RecordedFault | None:
        """Do it, once the run has come there and trains; None: it is over before.

        Raises:
            NeverError: it cannot be done on this run, and the run is as it was.
            TimeoutError: the run does not come there, or to where it can be done.
        """
        self.refusal = ""
        if not self._wait(lambda: self._step() >= planned.step, f"step {planned.step}"):
            return None
        patience = _Patience(PATIENCE_S)
        while True:
            it = self._look()
            if self._is_over(it):
                return None
            try:
                struck = self._strike(it, planned)
                break
            except ImpossibleDrillError:
                raise
            except _NOT_NOW as error:  # it is on its way from one generation to the next
                self.refusal = f"{planned.kind} at step {planned.step}: {error}"
                if patience.is_over(it.state):
                    raise TimeoutError(self.refusal) from None
                time.sleep(_POLL_S)
        if planned.kind == DrillKind.SUPERVISOR and not it.is_slurm:
            self._resume()
        return struck

    def _strike(self, it: Overview, planned: ScheduledFault) -> RecordedFault:
        """Raises DrillError: it cannot be done now."""
        rank, node = _victim(it, planned)
        if planned.kind in self._site.faults:
            hosts = it.progress.hosts if it.is_slurm else [gethostname()] * it.progress.nodes
            if it.state is not RunState.RUNNING or node >= len(hosts):
                raise DrillError(f"{it.run.name} is {it.word}: it takes a run that trains")
            host, other = hosts[node], _beside(node, training_nodes(it))
            struck = RecordedFault(
                time.time(), planned.kind, self._new_step(), f"{planned.kind} of {host}"
            )
            beside = None if other is None else hosts[other]
            self._site.play(planned.kind, host, node, it.progress.job, beside)
            return struck
        plan = plan_drill(it, DrillKind(planned.kind), rank, node)
        harmed = plan.path.name if plan.path is not None else None
        struck = RecordedFault(time.time(), planned.kind, self._new_step(), plan.what, harmed)
        execute_fault_plan(it, plan)
        return struck

    def until_past(self, struck: RecordedFault) -> None:
        """Until a step was finished that was not before, by ranks that were started since if the
        fault takes those that there were."""

        def is_past() -> bool:
            later = self._events[self._known :]
            if self._restarts(struck.kind):
                started = [i for i, e in enumerate(later) if e.kind == "training_started"]
                later = later[started[0] :] if started else []
            return any(e.kind == "step" and e["step"] > struck.step for e in later)

        self._wait(is_past, f"a new step after this: {struck.what}")

    def until_over(self) -> None:
        """Until nothing of it is there, or comes by itself."""
        while self._wait(partial(self._is_past, self._step()), "its end, or another step"):
            pass

    def _resume(self) -> None:
        while self._look().is_alive:  # its agents end when they find it gone
            time.sleep(_POLL_S)
        if problem := resume_run(self._run):
            raise TimeoutError(problem)

    def _wait(self, holds: Callable[[], bool], what: str) -> bool:
        """False: the run is over before. Raises TimeoutError if neither comes in time."""
        patience, look_s = _Patience(PATIENCE_S), 0.0
        while True:
            if time.monotonic() > look_s:
                it, look_s = self._look(), time.monotonic() + _LOOK_S
            self._events += self._tail.read()
            if holds():
                return True
            if self._is_over(it):
                return False
            if patience.is_over(it.state):
                raise TimeoutError(f"not in {PATIENCE_S:g} s: {what}")
            time.sleep(_POLL_S)

    def _is_over(self, it: Overview) -> bool:
        """For good: a job that is on its way back to the queue is nowhere for a moment."""
        if it.is_alive:
            self._gone_s = math.inf
        elif not it.is_ended and it.is_slurm:
            self._gone_s = min(self._gone_s, time.monotonic())
            return time.monotonic() - self._gone_s > GONE_S
        return not it.is_alive

    def _look(self) -> Overview:
        it = look(self._run, Queue())
        if time.monotonic() > self._told_s + TOLD_S:
            self._told_s = time.monotonic()
            self._tell(_how_far(it))
        return it

    def _restarts(self, kind: str) -> bool:
        if kind in self._site.faults:
            return self._site.faults[kind].restarts
        return kind not in _NO_RESTART

    def _new_step(self) -> int:
        self._events += self._tail.read()
        self._known = len(self._events)
        return self._step()

    def _is_past(self, step: int) -> bool:
        return self._step() > step

    def _step(self) -> int:
        return max((e["step"] for e in self._events if e.kind == "step"), default=0)


class _Patience:
    """Seconds in which a run is to do something, but for those in which it has no nodes: how long
    a queue is, is nobody's fault."""

    def __init__(self, seconds: float) -> None:
        self._left_s, self._seen_s = seconds, time.monotonic()

    def is_over(self, state: RunState) -> bool:
        """To be asked again and again, with the run's state now."""
        now_s = time.monotonic()
        if state not in (RunState.QUEUED, RunState.WAITING):
            self._left_s -= now_s - self._seen_s
        self._seen_s = now_s
        return self._left_s < 0


def _how_far(it: Overview) -> str:
    at = f"{it.run.name} is {it.word}, at step {it.progress.step or 0:,}"
    if it.state in (RunState.QUEUED, RunState.WAITING) and (job := it.waiting_job) is not None:
        return f"{at}: job {job.number} waits for its nodes ({job.reason})"
    return at


def _victim(it: Overview, planned: ScheduledFault) -> tuple[int, int]:
    """(rank, node)."""
    nodes = training_nodes(it)
    return planned.number(max(1, it.progress.ranks)), nodes[planned.number(len(nodes))]


def _beside(node: int, training: Sequence[int]) -> int | None:
    """The one that trains after it, going round; None: it is alone."""
    others = [*(n for n in training if n > node), *(n for n in training if n < node)]
    return others[0] if others else None
