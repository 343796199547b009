"""The node agent: one per node, kept by `hpckit.agent.watchdog`. Generation after
generation it starts torchrun, passes requests on, watches, and reports.

It is told what to do on its standard input (`hpckit.agent.message_channel`), and answers on its
standard output. When the supervisor is gone, so are the workers, and the agent.

SIGTERM and SIGUSR2, by which Slurm may tell the steps of a job and not the job itself, are passed
on to the supervisor, which decides.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING

import psutil

from hpckit.agent.device_assignment import visible_gpus
from hpckit.agent.message_channel import Channel, Message
from hpckit.agent.node_health.health_probes import start_health_check
from hpckit.agent.orphaned_job import end_job, is_orphan
from hpckit.agent.supervisor_liveness import SupervisorLiveness
from hpckit.agent.workers.forkserver_client import ForkServerClient
from hpckit.agent.workers.torchrun_command import Rendezvous
from hpckit.agent.workers.worker_processes import STEP_SIGNALS, WorkerResources, Workers
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventLog
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
    """What an agent is told to begin a generation."""

    generation: int
    nodes: int
    place: int
    """Of this node among these, as of `Rendezvous`."""
    host: str
    port: int
    token: str
    """Of the rendezvous store, as of `Rendezvous`."""
    device: str
    gpus: str | None
    """As of `WorkerResources`."""
    threads: int | None
    """Of each worker; None: an even share of the node's cores."""
    is_memory_here: bool = False
    """Whether no node but these may have a part in its memory of a save that can be whole."""
    supervised_at: int | None = None
    """Place of the node that the supervisor is on, with which that may be lost."""


class Agent:
    """Serves until it is told to quit, or nobody is there to tell it."""

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
            server: what begins its torchruns; None: each is a program of its own.
            heard: names of signals that have come for it already, or come before it serves.
        """
        self._run, self._submission, self._node = run, submission, node
        self._spec, self._channel, self._server = spec, channel, server
        self._workers: Workers | None = None
        self._supervised_at: int | None = None  # as of the last `GenerationStart`
        self._checkup: Future[list[str]] | None = None  # of this node; then it says hello
        self._heard = heard  # names of signals that were not passed on yet
        self._exporter = self._make_exporter()

    def serve(self) -> None:
        for number in STEP_SIGNALS:
            signal.signal(number, self._on_signal)
        self._sweep()
        self._checkup = start_health_check(self._spec, self._run)
        try:
            if self._obey_until_told_to_quit():
                return
            log.error("the supervisor is gone, or was not heard of for long")
        finally:
            if self._workers is not None:
                self._workers.kill()
            if self._server is not None:
                self._server.end()
            if self._exporter is not None:
                self._exporter.close()
        self._channel.close()  # one that was frozen, and goes on, is to know that this is over
        self._end_alone()

    def _make_exporter(self) -> Exporter | None:
        spec = self._spec.metrics.prometheus
        if spec.folder is None and spec.port is None:
            return None
        from hpckit.exporter.exporter import Exporter  # http.server: not for every beginning

        return Exporter(spec, self._run, self._node)

    def _say_hello(self, problems: list[str]) -> None:
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

    def _obey_until_told_to_quit(self) -> bool:
        """False: nobody is there to tell it."""
        while not self._channel.is_over:
            if not all(self._obey(message) for message in self._channel.receive()):
                return True
            self._look()
            time.sleep(TICK_S)
        return False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._heard.append(signal.Signals(number).name)

    def _obey(self, message: Message) -> bool:
        """False where there is no more to do."""
        match message["kind"]:
            case "start":
                self._start(GenerationStart(**message["start"]))
            case "ask" if self._workers is not None:
                self._workers.ask(WorkerRequest[message["request"]])
            case "end" if self._workers is not None:
                self._workers.end()
            case "look" if self._checkup is None:
                self._checkup = start_health_check(self._spec, self._run)
            case "quit":
                if message["drain_s"] is not None:
                    self._drain(message["drain_s"], message.get("lost", ()))
                return False
        return True

    def _start(self, start: GenerationStart) -> None:
        at = NodeEnvironment(self._run, self._submission, start.generation, self._node, start.nodes)
        self._supervised_at = start.supervised_at
        self._sweep(start.generation)
        threads = start.threads or even_share(self._spec.launch.gpus_per_node)
        means = WorkerResources(start.device, start.gpus, threads, start.is_memory_here)
        local = self._spec.cluster.address or own_address(start.host)
        meet = Rendezvous(start.host, start.port, start.token, local, start.place)
        self._workers = Workers(at, self._spec, meet, means, self._server)
        if self._exporter is not None:
            self._exporter.watch(self._workers.slots, start.device, is_first=start.place == 0)

    def _sweep(self, generation: int | None = None) -> None:
        """No process of an agent before this one, or of a generation before, is left here. Its
        siblings, which its keeper has started, are not theirs."""
        siblings = [process.pid for process in psutil.Process(os.getppid()).children()]
        if swept := kill_strays(self._run.path, self._node, siblings):
            with EventLog(self._run.events, generation=generation) as events:
                events.emit("strays_killed", node=self._node, pids=swept)

    def _end_alone(self) -> None:
        """On Slurm: what is in memory is made durable, and the job does not stay without anybody
        to end it. Elsewhere the next supervisor finds what there is."""
        found = job_of()
        if found is None:
            return
        job, host = found
        overheard = SupervisorLiveness(self._run.events)
        drain = threading.Thread(target=self._drain, args=(self._spec.cluster.grace_s,))
        drain.start()  # at once: Slurm may need long to know, and this node may have little time
        is_alone = is_orphan(job, host, overheard.has_spoken)
        if is_alone and self._supervised_at is not None:
            self._tell_lost(self._supervised_at)
        drain.join()
        if is_alone:
            comes_again = self._spec.launch.continuation == "requeue"
            end_job(job, self._run.orphan(job), comes_again=comes_again)

    def _tell_lost(self, place: int) -> None:
        """What was in the memory of that node is not waited for any more."""
        from checkpointing.service.client.service_stop import report_lost_ranks

        report_lost_ranks(*store_and_name(self._spec, self._run), self._ranks_lost([place]))

    def _drain(self, within_s: float, lost: Sequence[int] = ()) -> None:
        """What trainers left in this node's memory is made durable: it goes with this process.

        Args:
            lost: places of nodes that are gone. If others have copies of what was in their memory,
                these make it durable.
        """
        from checkpointing.service.client.service_stop import (
            end_services,  # numpy: too long for a beginning
        )

        place = store_and_name(self._spec, self._run)
        if not end_services(*place, within_s, lost=self._ranks_lost(lost)):
            with EventLog(self._run.events) as events:
                what = "a checkpoint service was still writing when its node had to be left"
                events.emit("degraded", node=self._node, what=what)

    def _ranks_lost(self, places: Sequence[int]) -> list[int]:
        """The ranks at these places, if nobody has copies of what was in their memory."""
        if self._spec.checkpoint.replicas > 0:
            return []
        each = self._spec.launch.gpus_per_node
        return [place * each + i for place in places for i in range(each)]

    def _look(self) -> None:
        while self._heard:
            self._channel.send({"kind": "signal", "name": self._heard.pop(0)})
        if self._checkup is not None and self._checkup.done():
            self._say_hello(self._checkup.result())
            self._checkup = None
        report = self._workers.poll() if self._workers is not None else None
        if self._workers is not None and report is not None:
            generation, self._workers = self._workers.at.generation, None
            if self._exporter is not None:
                self._exporter.rest()
            log.info("generation %d: %s at step %d", generation, report.exit, report.step)
            said = {"generation": generation, "report": asdict(report)}
            self._channel.send({"kind": "ended", **said})


def own_address(host: str) -> str:
    """The address of this node on the network that leads to `host`. Names may not resolve."""
    family, _, _, _, where = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        return str(probe.getsockname()[0])


def even_share(workers: int) -> int:
    """Threads of each worker, where they share this process's cores."""
    return max(1, len(os.sched_getaffinity(0)) // workers)
