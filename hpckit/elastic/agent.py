"""The node agent: one per node and generation. Starts torchrun, passes requests on, watches.

SIGUSR2  ask the workers to save and leave; another generation goes on
SIGINT   ask the workers to save and leave for good
SIGTERM  end the workers now
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from types import FrameType

from hpckit.elastic import watch
from hpckit.elastic.report import ExitReport, NodeExit, first_error
from hpckit.elastic.torchrun import Rendezvous, torchrun_command, torchrun_variables
from hpckit.run.board import Board, Request
from hpckit.run.environment import NodeEnvironment, worker_variables
from hpckit.run.events import EventLog
from hpckit.run.parse import read_spec
from hpckit.run.processes import Process, kill_all, spawn
from hpckit.run.spec import RunSpec

log = logging.getLogger(__name__)

TICK_S = 0.05
_REQUESTS = {signal.SIGUSR2: Request.PREEMPT, signal.SIGINT: Request.STOP}
HELD_SIGNALS = (*_REQUESTS, signal.SIGTERM)
"""What to hold back from an agent until it is ready (`hpckit.run.processes.spawn`)."""


class Agent:
    """Runs one generation's workers on one node."""

    def __init__(self, at: NodeEnvironment, spec: RunSpec, meet: Rendezvous) -> None:
        self._at = at
        self._spec = spec
        self._meet = meet
        self._asked: Request = Request.NONE
        self._end_now = False
        self._known_lost: set[int] = set()

    def run(self, device: str, threads: int) -> ExitReport:
        """Start the workers, stay with them to their end, and leave the report."""
        for number in HELD_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)
        at = self._at
        self._board, path = Board.create(self._spec.launch.gpus_per_node)
        env = os.environ | worker_variables(device, path) | torchrun_variables(threads)
        with EventLog(at.run.events, generation=at.generation, node=at.node) as events:
            torchrun = spawn(
                torchrun_command(self._spec, at, self._meet),
                env,
                at.run.node_logs(at.generation, at.node) / "torchrun.log",
            )
            try:
                how = self._watch(torchrun, events)
            finally:
                kill_all([torchrun])
            report = self._report(how)
            try:
                report.write(at.run.exit_report(at.generation, at.node))
            except OSError as error:
                log.error("no report for the supervisor, which will hold us for lost: %s", error)
            events.emit("node_ended", exit=how, step=report.step, attempts=report.attempts)
        return report

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if request := _REQUESTS.get(signal.Signals(number)):
            self._asked = max(self._asked, request)
        else:
            self._end_now = True

    def _watch(self, torchrun: Process, events: EventLog) -> NodeExit:
        """Wait for the end of `torchrun`, or for a reason to end it."""
        while True:
            returncode = torchrun.poll()
            slots = self._board.slots()
            request = self._board.request()
            if returncode is not None:
                return watch.node_exit(slots, returncode, request)
            if self._end_now:
                return NodeExit.STOPPED
            if watch.refused(slots):
                return NodeExit.REFUSED
            if request is not Request.NONE and watch.failed(slots):
                return NodeExit.FAILED  # a restart could only be asked to leave again
            if request is not Request.NONE and self._board.seconds_left() < 0:
                return NodeExit.OVERDUE
            self._say_lost(events)
            if self._asked > request:
                self._board.ask(self._asked, within_s=self._spec.cluster.grace_s)
            time.sleep(TICK_S)

    def _say_lost(self, events: EventLog) -> None:
        for rank, slot in watch.lost_workers(self._board.slots(), _alive).items():
            if slot.pid not in self._known_lost:
                self._known_lost.add(slot.pid)
                log.warning("worker %d (process %d) is gone at step %d", rank, slot.pid, slot.step)
                events.emit(
                    "worker_lost",
                    local_rank=rank,
                    pid=slot.pid,
                    step=slot.step,
                    attempt=slot.attempt,
                )

    def _report(self, how: NodeExit) -> ExitReport:
        slots = self._board.slots()
        well = how in (NodeExit.DONE, NodeExit.LEFT)
        logs = self._at.run.node_logs(self._at.generation, self._at.node)
        return ExitReport(
            node=self._at.node,
            exit=how,
            step=watch.steps_finished(slots),
            attempts=watch.attempts(slots),
            error=None if well else first_error(logs),
        )


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main(argv: list[str]) -> int:
    """`python -m hpckit.elastic.agent HOST PORT DEVICE THREADS`, its place in the environment."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    host, port, device, threads = argv
    at = NodeEnvironment.from_env()
    spec = read_spec(at.run.spec(at.submission))
    report = Agent(at, spec, Rendezvous(host, int(port))).run(device, int(threads))
    log.info("node %d: %s at step %d", at.node, report.exit, report.step)
    return 0 if report.exit in (NodeExit.DONE, NodeExit.LEFT) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
