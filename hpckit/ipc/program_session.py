"""The session of a training program with the agent of its node: it writes the heartbeats and the
events of one worker, and reads what the agent asks. It imports no torch.

`hpckit.client` is its public interface.
"""

from __future__ import annotations

import math
import os
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, SupportsFloat

from hpckit.events.event_log import EventLog
from hpckit.events.schema import CheckpointReported, TrainingStarted
from hpckit.events.step_phases import NAMES as PHASES
from hpckit.ipc.heartbeat_table import HeartbeatWriter, WorkerPhase, WorkerRequest
from hpckit.ipc.own_packages import own_packages
from hpckit.ipc.process_environment import ATTEMPT, WorkerEnvironment

RECORD_EVERY_S = 1.0
"""Least seconds between two recorded steps. Slower steps are recorded one by one."""
PACE_S = 0.05
"""Least seconds between two exchanges of the ranks about a request to leave."""
_LONGEST_US = (1 << 28) - 1
_RESERVED = frozenset({"time", "kind", "generation", "attempt", "node", "rank", "step", "step_s"})


class ProgramSession:
    """The session of the worker whose environment is `env`."""

    def __init__(self, env: WorkerEnvironment, attempt: int) -> None:
        self._heartbeats: HeartbeatWriter = env.attach_heartbeats()
        self._world_size = env.world_size
        self._events = (
            EventLog(env.at.run.events, generation=env.at.generation, attempt=attempt, rank=0)
            if env.rank == 0
            else None
        )
        self._step = 0
        self._recorded: tuple[int, float] | None = None  # step and time of the newest record
        self._counted = {"samples": 0.0, "tokens": 0.0}
        self._unrecorded: Mapping[str, SupportsFloat] | None = None
        self._agreement: StopAgreement | None = None
        self._is_leaving = False

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> ProgramSession:
        """Returns the session of this process.

        Raises:
            RuntimeError: hpckit did not start the process.
            OSError: the agent of the node is gone.
        """
        return cls(WorkerEnvironment.from_env(env), int(env.get(ATTEMPT, "0")))

    def report_step(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Reports that `step` steps are finished, and records the newest step each second.

        Args:
            metrics: values of the step by name; `samples` and `tokens` are counts of all ranks
                together, from which rates are computed. Values are converted to numbers only when
                they are recorded.
        """
        self._heartbeats.report(WorkerPhase.TRAINING, step)
        self._record(step, metrics)

    def report_output(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Records a step that was observed in what the program writes, unless the program reports
        its steps itself. It is watched for hangs by `report_deadline` alone."""
        if self._heartbeats.phase() is WorkerPhase.RUNNING:
            self._heartbeats.report(WorkerPhase.RUNNING, step)
            self._record(step, metrics)

    def report_deadline(self, deadline_s: float | None) -> None:
        """Reports when a program whose steps are observed counts as hung, in CLOCK_MONOTONIC
        seconds; None: it does not."""
        self._heartbeats.report_deadline(deadline_s or 0.0)

    def _record(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        self._step = step
        if self._events is None:
            return
        now_s = time.monotonic()
        if self._recorded is None:
            begun, world_size = max(0, step - 1), self._world_size
            self._events.emit(TrainingStarted(step=begun, world_size=world_size, samples=None))
            self._write(metrics, begun, None)  # its duration is not known
            self._recorded = (step, now_s)
            return
        for name in self._counted:
            if (count := metrics.get(name)) is not None:
                self._counted[name] += float(count)
        begun, since_s = self._recorded
        if now_s - since_s < RECORD_EVERY_S or step <= begun:
            self._unrecorded = metrics
            return
        self._write(metrics, begun, now_s - since_s)
        self._recorded = (step, now_s)

    def _write(
        self, metrics: Mapping[str, SupportsFloat], begun: int, seconds: float | None
    ) -> None:
        """Records the present step, `seconds` after `begun` steps were finished."""
        assert self._events is not None
        record: dict[str, Any] = {"step": self._step, "step_s": 0.0}
        if seconds:
            record["step_s"] = seconds / max(1, self._step - begun)
            record |= {f"{n}_per_s": v / seconds for n, v in self._counted.items() if v}
        for name, value in metrics.items():
            if name not in self._counted and name not in _RESERVED:
                record[name] = float(value)
        if known := [record[name] for name in PHASES if name in record]:
            record.setdefault("other_s", max(0.0, record["step_s"] - sum(known)))
        self._counted = dict.fromkeys(self._counted, 0.0)
        self._unrecorded = None
        self._events.emit_kind("step", **record)

    def report_checkpoint(self, step: int) -> None:
        """Reports that the program has saved a checkpoint with `step` finished steps."""
        if self._events is not None:
            self._events.emit(CheckpointReported(step=step))

    @contextmanager
    def phase(self, phase: WorkerPhase) -> Iterator[None]:
        """Reports that the program is in `phase` during the block, and then in the phase before."""
        before = self._heartbeats.phase()
        self._heartbeats.report(phase, self._step)
        try:
            yield
        finally:
            self._heartbeats.report(before, self._step)

    def report_end(self) -> None:
        """Reports that training is over. The program is no longer watched for hangs."""
        self._heartbeats.report(WorkerPhase.RUNNING, self._step)

    def should_stop(self) -> bool:
        """Returns whether the program is asked to save and exit. With an initialized process group
        of torch, all ranks get the same answer at the same call, which is a collective."""
        if self._is_leaving:
            return True
        seen = self._heartbeats.request()
        if self._agreement is not None and not self._agreement.is_of_present_group():
            self._agreement.close()  # its ranks need not be those of another group
            self._agreement = None
        if self._agreement is None and self._world_size > 1 and _is_distributed():
            self._agreement = StopAgreement()
        if self._agreement is None:
            self._is_leaving = seen is not WorkerRequest.NONE
        else:
            self._is_leaving = self._agreement.exchange(seen)
        return self._is_leaving

    def seconds_left(self) -> float | None:
        """Returns the seconds until the agent kills the program; None if it was not asked to
        leave."""
        if self._heartbeats.request() is WorkerRequest.NONE:
            return None
        return max(0.0, self._heartbeats.seconds_left())

    def close(self) -> None:
        """Records the last step, and closes the event log."""
        if self._events is None:
            return
        if self._unrecorded is not None and self._recorded is not None:
            begun, since_s = self._recorded
            self._write(self._unrecorded, begun, time.monotonic() - since_s)
        self._events.close()
        self._events = None


class StopAgreement:
    """The agreement of all ranks on whether to leave, for which no step waits.

    The answer of an exchange is that of the one before, so that all ranks leave at the same call.
    Ranks exchange the longest time between two calls too, from which each of them computes the same
    number of calls without an exchange.
    """

    def __init__(self) -> None:
        with own_packages():
            from checkpointing.ranks.lagged_agreement import LaggedMax
            from checkpointing.ranks.rank_group import open_tree

        self._group = weakref.ref(_present_group())
        self._tree = open_tree()
        self._strongest = LaggedMax(self._tree)
        self._calls, self._between = 0, 1
        self._last_s: float | None = None

    def exchange(self, seen: WorkerRequest) -> bool:
        """Contributes the request that this rank has seen, and returns whether all leave.
        Collective: every rank calls it equally often."""
        self._calls += 1
        if self._calls % self._between:
            return False
        now_s = time.monotonic()
        spent_s = 0.0 if self._last_s is None else (now_s - self._last_s) / self._between
        self._last_s = now_s
        request, longest_s = decoded(self._strongest.collect())
        if request:
            return True
        if longest_s > 0:
            self._between = max(1, math.floor(PACE_S / longest_s))
        self._strongest.say(encoded(int(seen), spent_s))
        return False

    def is_of_present_group(self) -> bool:
        """Returns whether the program has not destroyed the process group of this agreement."""
        return _is_distributed() and self._group() is _present_group()

    def close(self) -> None:
        """Closes the connections to the other ranks."""
        self._tree.close()


def encoded(request: int, seconds: float) -> int:
    """Returns an integer of 31 bits for a request and the time between two calls. Of two such
    numbers, the larger one has the stronger request, then the longer time."""
    return (request << 28) | min(_LONGEST_US, max(0, round(seconds * 1e6)))


def decoded(number: int) -> tuple[int, float]:
    """Inverts `encoded`."""
    return number >> 28, (number & _LONGEST_US) / 1e6


def _present_group() -> Any:
    """Returns the default process group of torch."""
    return sys.modules["torch.distributed"].group.WORLD


def _is_distributed() -> bool:
    """Returns whether the program has initialized a process group of torch."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and bool(dist.is_initialized())
