"""One generation's workers on one node: their torchrun, their board, and how they ended."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hpckit.agent.exit_report import ExitReport, NodeExit, first_error, write_hang
from hpckit.agent.hangs import hang_detection, stack_dumps
from hpckit.agent.hangs.nccl_flight_recorder import FlightRecorder
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
from hpckit.ipc.heartbeat_table import Heartbeat, HeartbeatTable, WorkerRequest
from hpckit.ipc.process_environment import STORE_TOKEN, NodeEnvironment, worker_variables
from hpckit.system.child_processes import kill_all, spawn

log = logging.getLogger(__name__)

STEP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""What Slurm may send to all processes of a step; torchrun would die of it, or end its workers."""


@dataclass(frozen=True)
class WorkerResources:
    """What the workers of a node work with."""

    device: str
    """`cpu` or `cuda`."""
    gpus: str | None
    """CUDA_VISIBLE_DEVICES; None: as it is."""
    threads: int
    """Of each worker, for the CPU's share of the computing."""
    is_memory_here: bool
    """As of `Start`."""


class Workers:
    """From their start to their end. `poll` is to be called often.

    Args:
        server: what begins their torchrun; None: it is one that starts them as programs.
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
        self._asked = WorkerRequest.NONE
        self._end_now = False
        self._known_lost: set[int] = set()
        self._known_hung: set[int] = set()
        logs = at.run.node_logs(at.generation, at.node)
        logs.mkdir(parents=True, exist_ok=True)
        self._events = EventLog(at.run.events, generation=at.generation, node=at.node)
        self._exhaustion = MemoryExhaustion(logs)
        self._board, path = HeartbeatTable.create(spec.launch.gpus_per_node)
        env = (
            os.environ
            | variables_of(spec.cluster.slurm)
            | at.to_env()
            | worker_variables(means.device, path, is_memory_here=means.is_memory_here)
        )
        env |= torchrun_variables(means.threads) | {STORE_TOKEN: meet.token}
        self._recorder = FlightRecorder(logs) if means.device == "cuda" else None
        if self._recorder is not None:
            env = self._recorder.variables() | env
        if means.gpus is not None:
            env["CUDA_VISIBLE_DEVICES"] = means.gpus
        arguments, output = torchrun_arguments(spec, at, meet), logs / LOG
        self._torchrun = (
            spawn([*PLAIN, *arguments], env, output, STEP_SIGNALS)
            if server is None
            else server.begin(arguments, env, output)
        )

    def slots(self) -> list[Heartbeat]:
        """What each has said last."""
        return self._board.slots()

    def ask(self, request: WorkerRequest) -> None:
        """Have the workers save and leave."""
        self._asked = max(self._asked, request)

    def end(self) -> None:
        """Have the workers killed at the next look."""
        self._end_now = True

    def poll(self) -> ExitReport | None:
        """How they ended, once they have or there is a reason to end them; else None."""
        how = self._how()
        if how is None:
            return None
        kill_all([self._torchrun])
        report = self._report(how)
        try:
            report.write(self.at.run.exit_report(self.at.generation, self.at.node))
        except OSError as error:
            log.error("the report is not on the disk: %s", error)
        self._events.emit("node_ended", exit=how, step=report.step, attempts=report.attempts)
        self._close()
        return report

    def kill(self) -> None:
        """Nobody is there to report to."""
        kill_all([self._torchrun])
        self._close()

    def _close(self) -> None:
        self._events.close()
        if self._recorder is not None:
            self._recorder.close()

    def _how(self) -> NodeExit | None:
        returncode = self._torchrun.poll()
        slots, request = self._board.slots(), self._board.request()
        if returncode is not None:
            return hang_detection.node_exit(slots, returncode, request)
        if self._end_now:
            return NodeExit.STOPPED
        if hang_detection.refused(slots):
            return NodeExit.REFUSED
        if request is not WorkerRequest.NONE and hang_detection.failed(slots):
            return NodeExit.FAILED  # a restart could only be asked to leave again
        if request is not WorkerRequest.NONE and self._board.seconds_left() < 0:
            return NodeExit.OVERDUE
        self._say_lost()
        self._say_exhausted(hang_detection.lost_workers(self._board.slots(), _alive))
        if self._exhaustion.is_hopeless:
            return NodeExit.FAILED
        self._end_hung()
        if self._asked > request:
            self._board.ask(self._asked, within_s=self._spec.cluster.grace_s)
        return None

    def _say_lost(self) -> None:
        for rank, slot in hang_detection.lost_workers(self._board.slots(), _alive).items():
            if slot.pid not in self._known_lost:
                self._known_lost.add(slot.pid)
                log.warning("worker %d (process %d) is gone at step %d", rank, slot.pid, slot.step)
                self._events.emit(
                    "worker_lost",
                    local_rank=rank,
                    pid=slot.pid,
                    step=slot.step,
                    attempt=slot.attempt,
                )

    def _say_exhausted(self, lost: Collection[int]) -> None:
        for rank, lack in self._exhaustion.look(self._board.slots(), lost).items():
            log.error("worker %d is out of memory (%s) after step %d", rank, lack.memory, lack.step)
            self._events.emit("out_of_memory", local_rank=rank, **asdict(lack))

    def _end_hung(self) -> None:
        """torchrun starts them again; on other nodes too, where peers of theirs hang with them."""
        slots = self._board.slots()
        hung = hang_detection.hung_workers(slots, time.monotonic(), self._spec.hang)
        new = {rank: slot for rank, slot in hung.items() if slot.pid not in self._known_hung}
        if not new:
            return
        self._known_hung |= {slot.pid for slot in new.values()}
        step, phase = min((slot.step, slot.phase) for slot in new.values())
        for rank, slot in new.items():
            doing = slot.phase.name.lower()
            log.error(
                "worker %d (process %d) hangs after step %d, %s", rank, slot.pid, slot.step, doing
            )
        logs = self.at.run.node_logs(self.at.generation, self.at.node)
        files = self._collectives(slots)
        files += stack_dumps.write_stacks([slot.pid for slot in new.values()], logs)
        self._events.emit(
            "hang",
            step=step,
            phase=phase.name.lower(),
            local_ranks=list(new),
            stacks=[str(path) for path in files],
        )
        write_hang(logs, step, hang_detection.attempts(slots), files, phase)
        for slot in new.values():
            with suppress(ProcessLookupError):
                os.kill(slot.pid, signal.SIGKILL)

    def _collectives(self, slots: Sequence[Heartbeat]) -> list[Path]:
        """Those of all ranks of the node: one that hangs shows by what the others wait for."""
        if self._recorder is None:
            return []
        ranks = (stack_dumps.rank_of(slot.pid) for slot in slots)
        return self._recorder.dump(rank for rank in ranks if rank is not None)

    def _report(self, how: NodeExit) -> ExitReport:
        slots = self._board.slots()
        well = how in (NodeExit.DONE, NodeExit.LEFT)
        logs = self.at.run.node_logs(self.at.generation, self.at.node)
        attempt = hang_detection.attempts(slots)
        if how is NodeExit.FAILED:  # and nobody is left now: who has not said why was lost
            self._say_exhausted(hang_detection.silent_workers(slots))
        error = None if well else first_error(logs, attempt)
        if error is None and how is NodeExit.FAILED:
            error = launcher_error(logs)
        before = first_error(logs, attempt - 1) if attempt and error is not None else None
        return ExitReport(
            node=self.at.node,
            exit=how,
            step=hang_detection.steps_finished(slots),
            attempts=attempt,
            error=error,
            is_oom_killed=not well and self._exhaustion.is_killed(attempt),
            is_repeated=before is not None and error is not None and before.words == error.words,
        )


def _alive(pid: int) -> bool:
    """Of a process of this user's."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # or its number is another user's by now
        return False
    return True
