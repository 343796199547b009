"""The agent: one process per node, which `hpckit.agent.watchdog` starts. In each generation it
starts torchrun, passes requests on to the workers, watches them, and reports how they ended.

It receives commands on its standard input and answers on its standard output
(`hpckit.agent.message_channel`). When the supervisor is gone, the workers and the agent end.

SIGTERM and SIGUSR2, which Slurm may send to the steps of a job and not to the job itself, are
forwarded to the supervisor, which decides.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING

import psutil

from hpckit.agent.device_assignment import even_share, visible_gpus
from hpckit.agent.message_channel import Channel, Message
from hpckit.agent.node_health.health_probes import start_health_check
from hpckit.agent.orphaned_job import (
    EARLY_ASKERS,
    EarlyNodeCheck,
    SupervisorLiveness,
    end_job,
    is_orphan,
    release_successor,
)
from hpckit.agent.workers.forkserver_client import ForkServerClient
from hpckit.agent.workers.torchrun_command import Rendezvous
from hpckit.agent.workers.worker_processes import STEP_SIGNALS, WorkerResources, Workers
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventLog
from hpckit.events.schema import Degraded, DegradedSubject, StraysKilled, SuccessorReleased
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.ipc.process_environment import NodeEnvironment, job_of
from hpckit.rundir.directory import RunDir, store_and_name
from hpckit.system.child_processes import kill_strays

if TYPE_CHECKING:
    from hpckit.exporter.exporter import Exporter

log = logging.getLogger(__name__)

TICK_S = 0.05


@dataclass(frozen=True)
class GenerationStart:
    """The message that starts a generation on a node."""

    generation: int
    nodes: int
    place: int
    """Place of this node in the generation, as in `Rendezvous`."""
    host: str
    port: int
    token: str
    """Token of the rendezvous store, as in `Rendezvous`."""
    device: str
    gpus: str | None
    """As in `WorkerResources`."""
    threads: int | None
    """Threads of each worker; None: an even share of the node's cores."""
    is_memory_here: bool = False
    """Whether no other node can hold a part of a usable snapshot in its memory."""
    supervised_at: int | None = None
    """Place of the supervisor's node, which may be lost together with the supervisor."""
    is_health_check: bool = False
    """Whether the workers measure their nodes (`health.deep`), and do not train."""


class Agent:
    """The agent of one node. It serves until it is asked to quit or the supervisor is gone."""

    def __init__(
        self,
        run: RunDir,
        submission: int,
        node: int,
        spec: RunSpec,
        channel: Channel,
        server: ForkServerClient | None,
        heard: list[str],
    ) -> None:
        """
        Args:
            server: starts torchruns. None: each torchrun is started as a program.
            heard: names of signals for the agent that came already, or come before it serves.
        """
        self._run, self._submission, self._node = run, submission, node
        self._spec, self._channel, self._server = spec, channel, server
        self._workers: Workers | None = None
        self._supervisor_place: int | None = None  # from the last `GenerationStart`
        self._asks_early = node < EARLY_ASKERS  # then by the place in the same
        self._health_check: Future[list[str]] | None = (
            None  # running health check; the hello follows it
        )
        self._pending_signals = heard  # names of signals that were not forwarded yet
        self._exporter = self._make_exporter()

    def serve(self) -> None:
        for number in STEP_SIGNALS:
            signal.signal(number, self._on_signal)
        self._kill_strays()
        self._health_check = start_health_check(self._spec, self._run)
        try:
            if self._serve_until_quit():
                return
            log.error("the supervisor has ended or has not sent anything for too long")
        finally:
            if self._workers is not None:
                self._workers.kill()
            if self._server is not None:
                self._server.end()
            if self._exporter is not None:
                self._exporter.close()
        self._channel.close()  # if frozen and resumed, the supervisor has to see the end
        self._end_without_supervisor()

    def _make_exporter(self) -> Exporter | None:
        spec = self._spec.metrics.prometheus
        if spec.folder is None and spec.port is None:
            return None
        # imports http.server, which would slow each start
        from hpckit.exporter.exporter import Exporter

        return Exporter(spec, self._run, self._node)

    def _send_hello(self, problems: list[str]) -> None:
        for problem in problems:
            log.error("this node is not healthy: %s", problem)
        self._channel.send(
            {
                "kind": "hello",
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "gpus": len(visible_gpus(os.environ)),
                "launcher": os.environ.get("SLURM_LAUNCH_NODE_IPADDR"),
                "problems": problems,
                "time": time.time(),
            }
        )

    def _serve_until_quit(self) -> bool:
        """Returns False if the supervisor is gone."""
        with closing(EarlyNodeCheck(job_of())) as check:
            while not self._channel.is_over:
                if not all(self._carry_out(message) for message in self._channel.receive()):
                    return True
                self._poll()
                check.update(is_quiet=self._asks_early and self._channel.is_quiet)
                self._channel.is_suspect = check.is_confirmed
                select.select(self._readable(), [], [], TICK_S)
        return False

    def _readable(self) -> list[int]:
        """Returns the descriptors whose messages are awaited: those of the supervisor and, while it
        has a torchrun to report on, of the fork server. Each is read after the wait for it, or else
        it would be a busy one."""
        found = [self._channel.fileno()]
        if self._workers is not None and self._server is not None:
            found += self._server.awaited()
        return found

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._pending_signals.append(signal.Signals(number).name)

    def _carry_out(self, message: Message) -> bool:
        """Carries out a message; returns False if the agent is to quit."""
        match message["kind"]:
            case "start":
                self._start(GenerationStart(**message["start"]))
            case "ask" if self._workers is not None:
                self._workers.ask(WorkerRequest[message["request"]])
            case "end" if self._workers is not None:
                self._workers.end()
            case "examine" if self._workers is not None:
                self._workers.examine()
            case "finding" if self._workers is not None:
                self._workers.conclude(message["text"])
            case "look" if self._health_check is None:
                self._health_check = start_health_check(self._spec, self._run)
            case "quit":
                if message["drain_s"] is not None:
                    self._drain(message["drain_s"], message.get("lost", ()))
                return False
        return True

    def _start(self, start: GenerationStart) -> None:
        at = NodeEnvironment(self._run, self._submission, start.generation, self._node, start.nodes)
        self._supervisor_place = start.supervised_at
        self._asks_early = start.place < EARLY_ASKERS
        self._kill_strays(start.generation)
        threads = start.threads or even_share(self._spec.launch.nproc_per_node)
        means = WorkerResources(
            start.device, start.gpus, threads, start.is_memory_here, start.is_health_check
        )
        local = self._spec.cluster.address or own_address(start.host)
        meet = Rendezvous(start.host, start.port, start.token, local, start.place)
        self._workers = Workers(at, self._spec, meet, means, self._server)
        if self._exporter is not None:
            self._exporter.watch(self._workers.slots, start.device, is_first=start.place == 0)

    def _kill_strays(self, generation: int | None = None) -> None:
        """Kills processes that a former agent or a former generation left on this node. Processes
        that the watchdog started are spared."""
        siblings = [process.pid for process in psutil.Process(os.getppid()).children()]
        if swept := kill_strays(self._run.path, self._node, siblings):
            with EventLog(self._run.events, generation=generation) as events:
                events.emit(StraysKilled(node=self._node, pids=swept))

    def _end_without_supervisor(self) -> None:
        """Without a supervisor: on Slurm, makes snapshots in memory durable, and ends the job if
        nothing else does. Elsewhere the next supervisor finds the snapshots."""
        found = job_of()
        if found is None:
            return
        job, host = found
        liveness = SupervisorLiveness(self._run.events)
        drain = threading.Thread(target=self._drain, args=(self._spec.cluster.grace_s,))
        drain.start()  # at once: Slurm may be slow to know, and this node may have little time
        is_alone = is_orphan(job, host, liveness.has_written, is_urgent=self._asks_early)
        if is_alone and self._supervisor_place is not None:
            self._report_lost(self._supervisor_place)
        drain.join()
        has_ended_it = is_alone and end_job(
            job, self._run.orphan(job), comes_again=self._spec.launch.is_requeued, host=host
        )
        # its own snapshots are written, and with them those of all nodes that took part; another
        # agent, such as that of a spare, may have cancelled the job before
        if (has_ended_it or self._asks_early) and self._run.orphan(job).exists():
            self._release_successor(job)

    def _release_successor(self, job: str) -> None:
        for number in release_successor(self._run, job):
            with EventLog(self._run.events) as events:
                events.emit(SuccessorReleased(job=number, former=job))

    def _report_lost(self, place: int) -> None:
        """Tells the checkpoint service not to wait for snapshots in the memory of that node."""
        from checkpointing.service.client.service_stop import report_lost_ranks

        report_lost_ranks(*store_and_name(self._spec, self._run), self._ranks_lost([place]))

    def _drain(self, within_s: float, lost: Sequence[int] = ()) -> None:
        """Makes snapshots in this node's memory durable, as they are lost with this process.

        Args:
            lost: places of lost nodes. If other nodes hold replicas of their snapshots, these make
                them durable.
        """
        from checkpointing.service.client.service_stop import (
            end_services,  # imports numpy, which would slow each start
        )

        place = store_and_name(self._spec, self._run)
        if not end_services(*place, within_s, lost=self._ranks_lost(lost)):
            with EventLog(self._run.events) as events:
                what = "a checkpoint service was still writing when its node had to be released"
                events.emit(
                    Degraded(subject=DegradedSubject.CHECKPOINT_SERVICE, node=self._node, what=what)
                )

    def _ranks_lost(self, places: Sequence[int]) -> list[int]:
        """Returns the ranks at these places, if no other node holds replicas of their snapshots."""
        if self._spec.checkpoint.replicas > 0:
            return []
        each = self._spec.launch.nproc_per_node
        return [place * each + i for place in places for i in range(each)]

    def _poll(self) -> None:
        while self._pending_signals:
            self._channel.send({"kind": "signal", "name": self._pending_signals.pop(0)})
        if self._health_check is not None and self._health_check.done():
            self._send_hello(self._health_check.result())
            self._health_check = None
        report = self._workers.poll() if self._workers is not None else None
        if self._workers is not None:
            for message in self._workers.messages():
                self._channel.send({**message, "generation": self._workers.at.generation})
        if self._workers is not None and report is not None:
            generation, self._workers = self._workers.at.generation, None
            if self._exporter is not None:
                self._exporter.rest()
            log.info("generation %d: %s at step %d", generation, report.exit, report.step)
            message = {"generation": generation, "report": asdict(report)}
            self._channel.send({"kind": "ended", **message})


def own_address(host: str) -> str:
    """Returns the address of this node on the network that leads to `host`, as names may not
    resolve."""
    family, _, _, _, where = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        return str(probe.getsockname()[0])
