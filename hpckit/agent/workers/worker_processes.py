"""The workers of one generation on one node, with their torchrun and heartbeat table."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpckit.agent.error_repetition import ErrorRepetition
from hpckit.agent.exit_report import ExitReport, NodeExit, first_error, write_hang
from hpckit.agent.hangs import hang_detection, stack_dumps
from hpckit.agent.hangs.hang_examination import Collected, HangExamination
from hpckit.agent.hangs.nccl_flight_recorder import FlightRecorder
from hpckit.agent.hangs.snapshot_collection import SnapshotCollector
from hpckit.agent.workers.forkserver_client import ForkServerClient
from hpckit.agent.workers.launcher_error import LOG, launcher_error
from hpckit.agent.workers.memory_exhaustion import MemoryExhaustion
from hpckit.agent.workers.torchrun_command import (
    PLAIN,
    Rendezvous,
    torchrun_arguments,
    torchrun_variables,
)
from hpckit.agent.workers.worker_environment import variables_of
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventLog
from hpckit.events.schema import HangDetected, NodeEnded, OutOfMemory, WorkerLost
from hpckit.ipc.heartbeat_table import Heartbeat, HeartbeatTable, WorkerRequest
from hpckit.ipc.process_environment import STORE_TOKEN, NodeEnvironment, worker_variables
from hpckit.ipc.snapshot_exchange import SnapshotExchange
from hpckit.system.child_processes import kill_all, spawn

log = logging.getLogger(__name__)

STEP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""Signals that Slurm may send to all processes of a step, at which torchrun would end or end its
workers."""
SOON_S = 1.0
"""Ranks whose limit ends so soon after that of another one count as overdue with it."""


@dataclass(frozen=True)
class WorkerResources:
    """The resources of a node's workers."""

    device: str
    """`cpu` or `cuda`."""
    gpus: str | None
    """CUDA_VISIBLE_DEVICES; None: unchanged."""
    threads: int
    """CPU threads of each worker."""
    is_memory_here: bool
    """As in `GenerationStart`."""
    is_health_check: bool = False
    """As in `GenerationStart`."""


class Workers:
    """The workers of one generation on one node, from their start to their end. `poll` has to be
    called often.

    Args:
        server: starts their torchrun. None: torchrun is started as a program that spawns them.
    """

    def __init__(
        self,
        at: NodeEnvironment,
        spec: RunSpec,
        meet: Rendezvous,
        means: WorkerResources,
        server: ForkServerClient | None,
    ) -> None:
        self.at, self._spec = at, spec
        self._requested = WorkerRequest.NONE
        self._end_now = False
        self._known_lost: set[int] = set()
        self._known_hung: set[int] = set()
        logs = at.run.node_logs(at.generation, at.node)
        logs.mkdir(parents=True, exist_ok=True)
        self._events = EventLog(at.run.events, generation=at.generation, node=at.node)
        self._exhaustion = MemoryExhaustion(logs)
        self._repetition = ErrorRepetition(logs, at.run.events)
        self._table, path = HeartbeatTable.create(spec.launch.nproc_per_node)
        self._exchange = SnapshotExchange(spec.launch.nproc_per_node)
        first_rank = meet.place * spec.launch.nproc_per_node
        self._collector = SnapshotCollector(self._exchange, first_rank, logs, self._table.slots)
        self._examination = HangExamination(self._collect)
        env = (
            os.environ
            | variables_of(spec.cluster.slurm)
            | at.to_env()
            | worker_variables(
                means.device,
                path,
                is_memory_here=means.is_memory_here,
                is_health_check=means.is_health_check,
                snapshots=self._exchange.address,
            )
        )
        env |= torchrun_variables(means.threads) | {STORE_TOKEN: meet.token}
        self._recorder = FlightRecorder(logs) if means.device == "cuda" else None
        if self._recorder is not None:
            env = self._recorder.variables() | env
        if means.gpus is not None:
            env["CUDA_VISIBLE_DEVICES"] = means.gpus
        restarts = 0 if means.is_health_check else spec.retry.max_restarts
        arguments, output = torchrun_arguments(spec, at, meet, restarts), logs / LOG
        self._torchrun = (
            spawn([*PLAIN, *arguments], env, output, STEP_SIGNALS)
            if server is None
            else server.begin(arguments, env, output)
        )

    @property
    def _has_observed_steps(self) -> bool:
        command = self._spec.command
        return command is not None and command.has_observed_steps

    def slots(self) -> list[Heartbeat]:
        """Returns the last heartbeat of each worker."""
        return self._table.slots()

    def ask(self, request: WorkerRequest) -> None:
        """Asks the workers to save and leave."""
        self._requested = max(self._requested, request)

    def end(self) -> None:
        """Has the workers killed at the next `poll`."""
        self._end_now = True

    def examine(self) -> None:
        """Examines what the workers are doing, as workers of another node hang."""
        self._examination.examine()

    def conclude(self, finding: str) -> None:
        """Takes what a hang comes from, in words."""
        self._examination.conclude(finding)

    def messages(self) -> list[dict[str, Any]]:
        """Returns the messages to the supervisor since the last call."""
        return self._examination.messages()

    def poll(self) -> ExitReport | None:
        """Returns how the workers ended, after their end or after ending them for a reason; None:
        they go on."""
        how = self._node_exit()
        if how is None:
            return None
        kill_all([self._torchrun])
        report = self._report(how)
        try:
            report.write(self.at.run.exit_report(self.at.generation, self.at.node))
        except OSError as error:
            log.error("the report could not be written: %s", error)
        self._events.emit(NodeEnded(exit=how, step=report.step, attempts=report.attempts))
        self._close()
        return report

    def kill(self) -> None:
        """Kills the workers without a report."""
        kill_all([self._torchrun])
        self._close()

    def _close(self) -> None:
        self._events.close()
        self._exchange.close()
        if self._recorder is not None:
            self._recorder.close()

    def _node_exit(self) -> NodeExit | None:
        returncode = self._torchrun.poll()
        slots, request = self._table.slots(), self._table.request()
        if returncode is not None:
            return hang_detection.node_exit(slots, returncode, request)
        if self._end_now:
            return NodeExit.STOPPED
        if hang_detection.refused(slots):
            return NodeExit.REFUSED
        if request is not WorkerRequest.NONE and hang_detection.failed(slots):
            return NodeExit.FAILED  # a restart would only be asked to leave again
        if request is not WorkerRequest.NONE and self._table.seconds_left() < 0:
            return NodeExit.OVERDUE
        if lost := hang_detection.lost_workers(slots, _alive):
            lost = hang_detection.confirmed_lost(lost, self._table.slots())
        self._report_lost_workers(lost)
        self._report_memory_failures(slots, lost)
        self._repetition.look(slots)
        if self._exhaustion.is_hopeless or self._repetition.is_hopeless:
            return NodeExit.FAILED
        self._kill_hung(slots)
        if self._requested > request:
            self._table.ask(self._requested, within_s=self._spec.cluster.grace_s)
        return None

    def _report_lost_workers(self, lost: Mapping[int, Heartbeat]) -> None:
        for rank, slot in lost.items():
            if slot.pid not in self._known_lost:
                self._known_lost.add(slot.pid)
                log.warning("worker %d (process %d) was lost at step %d", rank, slot.pid, slot.step)
                self._events.emit(
                    WorkerLost(local_rank=rank, pid=slot.pid, step=slot.step, attempt=slot.attempt)
                )

    def _report_memory_failures(self, slots: Sequence[Heartbeat], lost: Collection[int]) -> None:
        for rank, failure in self._exhaustion.look(slots, lost).items():
            log.error(
                "worker %d is out of memory (%s) after step %d", rank, failure.memory, failure.step
            )
            self._events.emit(OutOfMemory(local_rank=rank, **asdict(failure)))

    def _kill_hung(self, slots: Sequence[Heartbeat]) -> None:
        """Kills hung workers after all nodes have examined theirs; torchrun restarts them, also on
        other nodes, where their peers hang, too."""
        now_s = time.monotonic()
        hung = hang_detection.hung_workers(slots, now_s, self._spec.hang)
        hung = {rank: slot for rank, slot in hung.items() if slot.pid not in self._known_hung}
        if hung and not self._examination.has_alarm:
            soon = hang_detection.hung_workers(slots, now_s + SOON_S, self._spec.hang)
            overdue = {slot.pid for slot in (hung | soon).values()}
            peers = hang_detection.peers_of_programs(slots, hung)
            signalled = overdue | {slot.pid for slot in peers.values()}
            silent_s = now_s - max(slot.beat for slot in hung.values())
            attempt = hang_detection.attempts(slots)
            self._examination.raise_alarm(overdue, signalled, attempt, silent_s)
        if not self._examination.is_decided():
            return
        finding, files = self._examination.finding, self._examination.files
        self._examination.reset()
        if hung:
            self._end_hung(hung, slots, finding, files)
        else:
            log.warning("workers that hung have advanced, and are not ended: %s", finding)

    def _end_hung(
        self,
        hung: Mapping[int, Heartbeat],
        slots: Sequence[Heartbeat],
        finding: str | None,
        files: Sequence[Path],
    ) -> None:
        self._known_hung |= {slot.pid for slot in hung.values()}
        step, phase = min((slot.step, slot.phase) for slot in hung.values())
        for rank, slot in hung.items():
            doing = slot.phase.name.lower()
            log.error(
                "worker %d (process %d) hangs after step %d, %s", rank, slot.pid, slot.step, doing
            )
        logs = self.at.run.node_logs(self.at.generation, self.at.node)
        self._events.emit(
            HangDetected(
                step=step,
                phase=phase.name.lower(),
                local_ranks=list(hung),
                stacks=[str(path) for path in files],
                explanation=finding,
            )
        )
        write_hang(logs, step, hang_detection.attempts(slots), files, phase, finding)
        for slot in hung.values():
            with suppress(ProcessLookupError):
                os.kill(slot.pid, signal.SIGKILL)

    def _collect(self, overdue: Collection[int], signalled: Collection[int]) -> Collected:
        """Collects what the workers are doing, in a thread of the examination."""
        is_early = bool(overdue)
        collectives = self._collectives(self._table.slots()) if is_early else []
        snapshots, files = self._collector.collect(overdue, signalled)
        if overdue and not is_early:  # they hang since an examination for another node
            collectives = self._collectives(self._table.slots())
        return snapshots, [*collectives, *files]

    def _collectives(self, slots: Sequence[Heartbeat]) -> list[Path]:
        """Dumps the collectives of all ranks of the node, as what the others wait for shows which
        one hangs."""
        if self._recorder is None:
            return []
        ranks = (stack_dumps.rank_of(slot.pid) for slot in slots)
        return self._recorder.dump(rank for rank in ranks if rank is not None)

    def _report(self, how: NodeExit) -> ExitReport:
        slots = self._table.slots()
        well = how in (NodeExit.DONE, NodeExit.LEFT)
        logs = self.at.run.node_logs(self.at.generation, self.at.node)
        attempt = hang_detection.attempts(slots)
        if how is NodeExit.FAILED:  # all have ended: those without a final phase were lost
            self._report_memory_failures(slots, hang_detection.silent_workers(slots))
        error = None if well else first_error(logs, attempt)
        if error is None and how is NodeExit.FAILED:
            error = launcher_error(logs)
        if how is NodeExit.FAILED:
            self._repetition.look(slots, is_over=True)
        before = first_error(logs, attempt - 1) if attempt and error is not None else None
        return ExitReport(
            node=self.at.node,
            exit=how,
            step=hang_detection.steps_finished(slots, is_of_rank_0=self._has_observed_steps),
            attempts=attempt,
            error=error,
            is_oom_killed=not well and self._exhaustion.is_killed(attempt),
            is_repeated=before is not None and error is not None and before.words == error.words,
            repeats=self._repetition.repeats if how is NodeExit.FAILED else 0,
        )


def _alive(pid: int) -> bool:
    """Returns whether a process of this user exists."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # gone, or its number is reused by another user
        return False
    return True
