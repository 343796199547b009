"""Follows a run by its events, and injects faults when it has reached their steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import dropwhile
from socket import gethostname

from checkpointing import local_folder
from hpckit.events.event_log import Event, EventTail
from hpckit.events.schema import SpikeFound, StepLogged, TrainingStarted, UpdateSkipped
from hpckit.faults.campaign.campaign_runs import resume_run
from hpckit.faults.campaign.fault_log import RecordedFault
from hpckit.faults.campaign.fault_schedule import ScheduledFault
from hpckit.faults.checkpoint_damage import written_since
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
from hpckit.report.overview import Overview, Queue, read_overview
from hpckit.report.run_state import RunState
from hpckit.rundir.directory import RunDir, checkpoint_root
from hpckit.rundir.supervisor_process import SupervisorError

PATIENCE_S = 300.0
"""Seconds in which a run has to train again after a fault, or to begin, while it has nodes."""
TOLD_S, GONE_S = 30.0, 15.0
_POLL_S, _LOOK_S = 0.1, 2.0
_NOT_NOW = (DrillError, SupervisorError)
NAMED = (DrillKind.HANG, DrillKind.STALL, DrillKind.WRONG)
"""The faults of a rank after which the run has to say which one it was."""
_DAMAGES = (DrillKind.DAMAGE, DrillKind.MANIFEST)
_NO_RESTART = (*OF_SERVICE, *_DAMAGES, DrillKind.CACHE, DrillKind.SLOW)


class InjectionTrigger:
    """Follows a run by its events, and injects faults into it."""

    def __init__(self, run: RunDir, site: SiteFaultSet, tell: Callable[[str], None]) -> None:
        """Args:
        tell: reports progress every `TOLD_S` seconds.
        """
        self._run, self._tail = run, EventTail(run.events)
        self._site, self._tell = site, tell
        self._reported_s = time.monotonic()
        self._events: list[Event] = []
        self._known = 0
        """Number of events before the newest fault; counted because times are unreliable if a clock
        is set."""
        self._gone_s = math.inf
        self._damaged_s = 0.0
        """When a checkpoint was damaged last, in seconds since the epoch."""
        self.refusal = ""
        """Why the newest fault that could not be injected immediately was refused."""

    def inject_when_due(self, planned: ScheduledFault) -> RecordedFault | None:
        """Inject the fault once the run has reached its step and trains; None: the run is over
        before.

        Raises:
            ImpossibleDrillError: it cannot be injected into this run, which is unchanged.
            TimeoutError: the run does not reach the step, or a state in which it can be injected.
        """
        self.refusal = ""
        if not self._wait(lambda: self._step() >= planned.step, f"step {planned.step}"):
            return None
        time_limit = _ActiveTimeout(PATIENCE_S)
        while True:
            it = self._look()
            if self._is_over(it):
                return None
            try:
                fault = self._inject(it, planned)
                break
            except ImpossibleDrillError:
                raise
            except _NOT_NOW as error:  # it is between two generations
                self.refusal = f"{planned.kind} at step {planned.step}: {error}"
                if time_limit.is_over(it.state):
                    raise TimeoutError(self.refusal) from None
                time.sleep(_POLL_S)
        if planned.kind == DrillKind.SUPERVISOR and not it.is_slurm:
            self._resume()
        return fault

    def _inject(self, it: Overview, planned: ScheduledFault) -> RecordedFault:
        """Inject the fault now. Raises DrillError if it cannot be injected now."""
        rank, node = _victim(it, planned)
        if planned.kind in self._site.faults:
            hosts = it.progress.hosts if it.is_slurm else [gethostname()] * it.progress.nodes
            if it.state is not RunState.RUNNING or node >= len(hosts):
                raise DrillError(
                    f"{it.run.name} {it.condition}: this requires a run that is training"
                )
            host, other = hosts[node], _beside(node, training_nodes(it))
            fault = RecordedFault(
                time.time(), planned.kind, self._new_step(), f"{planned.kind} of {host}"
            )
            neighbour = None if other is None else hosts[other]
            self._site.play(planned.kind, host, node, it.progress.job, neighbour)
            return fault
        plan = plan_drill(it, DrillKind(planned.kind), rank, node)
        if planned.kind in _DAMAGES:
            self._require_other_checkpoint(it)
        harmed = plan.path.name if plan.path is not None else None
        hit = plan.number if plan.kind in NAMED else None
        fault = RecordedFault(time.time(), planned.kind, self._new_step(), plan.what, harmed, hit)
        execute_fault_plan(it, plan)
        caused = time.time()
        if planned.kind in _DAMAGES:
            self._damaged_s = caused
        return replace(fault, caused=caused)

    def _require_other_checkpoint(self, it: Overview) -> None:
        """Raise DrillError if the run might have no checkpoint left that is not damaged: no run
        could continue then, and a campaign is about those that can."""
        assert it.spec is not None
        folder = local_folder(checkpoint_root(it.spec, it.run))
        assert folder is not None
        if written_since(folder, self._damaged_s) < 2:
            raise DrillError("fewer than two checkpoints were made since the last one was damaged")

    def until_past(self, struck: RecordedFault) -> None:
        """Wait until a new step was finished; if the fault ends ranks, by ranks that were started
        since; and of a spike, since the run has found it."""

        does_restart = self._restarts(struck.kind)

        def is_past() -> bool:
            later, restarts = self._events[self._known :], does_restart
            if struck.kind == DrillKind.SPIKE:
                later = _since(later, SpikeFound, UpdateSkipped)
                restarts = any(isinstance(event, SpikeFound) for event in later[:1])
            if restarts:
                later = _since(later, TrainingStarted)
            return any(isinstance(e, StepLogged) and e.step > struck.step for e in later)

        self._wait(is_past, f"a new step after this: {struck.what}")

    def until_over(self) -> None:
        """Wait until nothing of the run is active, or will start automatically."""
        while self._wait(partial(self._is_past, self._step()), "its end, or another step"):
            pass

    def _resume(self) -> None:
        while self._look().is_alive:  # its agents end when they notice that it has ended
            time.sleep(_POLL_S)
        if problem := resume_run(self._run):
            raise TimeoutError(problem)

    def _wait(self, holds: Callable[[], bool], what: str) -> bool:
        """Wait until `holds()` is true; False: the run is over before. Raises TimeoutError if
        neither happens in time."""
        timeout, look_s = _ActiveTimeout(PATIENCE_S), 0.0
        while True:
            if time.monotonic() > look_s:
                it, look_s = self._look(), time.monotonic() + _LOOK_S
            self._events += self._tail.read()
            if holds():
                return True
            if self._is_over(it):
                return False
            if timeout.is_over(it.state):
                raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}")
            time.sleep(_POLL_S)

    def _is_over(self, it: Overview) -> bool:
        """Whether the run is over: a job on its way back to the queue is in no list for a
        moment."""
        if it.is_alive:
            self._gone_s = math.inf
        elif not it.is_ended and it.is_slurm:
            self._gone_s = min(self._gone_s, time.monotonic())
            return time.monotonic() - self._gone_s > GONE_S
        return not it.is_alive

    def _look(self) -> Overview:
        it = read_overview(self._run, Queue())
        if time.monotonic() > self._reported_s + TOLD_S:
            self._reported_s = time.monotonic()
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
        return max((e.step for e in self._events if isinstance(e, StepLogged)), default=0)


def _since(events: Sequence[Event], *kinds: type[Event]) -> list[Event]:
    """Return the events from the first one of these kinds on."""
    return list(dropwhile(lambda event: not isinstance(event, kinds), events))


class _ActiveTimeout:
    """A timeout that does not count the time in which the run has no nodes, because time in the
    queue is not a failure."""

    def __init__(self, seconds: float) -> None:
        self._left_s, self._seen_s = seconds, time.monotonic()

    def is_over(self, state: RunState) -> bool:
        """Whether the time is up; called repeatedly with the run's present state."""
        now_s = time.monotonic()
        if state not in (RunState.QUEUED, RunState.WAITING):
            self._left_s -= now_s - self._seen_s
        self._seen_s = now_s
        return self._left_s < 0


def _how_far(it: Overview) -> str:
    at = f"{it.run.name} {it.condition}, at step {it.progress.step or 0:,}"
    if it.state in (RunState.QUEUED, RunState.WAITING) and (job := it.waiting_job) is not None:
        return f"{at}: job {job.number} waits for its nodes ({job.reason})"
    return at


def _victim(it: Overview, planned: ScheduledFault) -> tuple[int, int]:
    """Return the victim as (rank, node)."""
    nodes = training_nodes(it)
    return planned.number(max(1, it.progress.ranks)), nodes[planned.number(len(nodes))]


def _beside(node: int, training: Sequence[int]) -> int | None:
    """Return the next node that trains, in a circle; None: there is no other."""
    others = [*(n for n in training if n > node), *(n for n in training if n < node)]
    return others[0] if others else None
