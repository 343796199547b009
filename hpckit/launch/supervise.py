"""The supervisor: one generation of the job after the other, until a verdict is final.

It is the batch process: submitit calls `supervise` with nothing but the run directory and the
number of the submission, so nothing stale is ever pickled.

    SIGUSR2, SIGTERM  preemption: every rank saves and leaves, the next generation goes on
    SIGINT            stop: every rank saves and leaves, nothing goes on
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from checkpointing import CheckpointError, list_run, local_folder
from checkpointing.service.ending import end_services
from hpckit.elastic.agent import HELD_SIGNALS
from hpckit.elastic.devices import Devices, choose, visible_gpus
from hpckit.elastic.drill import Drill
from hpckit.elastic.report import ExitReport
from hpckit.elastic.store import RendezvousStore
from hpckit.elastic.verdict import Ending, Kind, Past, Verdict, judge
from hpckit.run.board import Request
from hpckit.run.check import nodes_of_generation
from hpckit.run.directory import RunDir, checkpoint_root, lock_paths, run_name
from hpckit.run.durable import write_json
from hpckit.run.environment import NodeEnvironment
from hpckit.run.events import EventLog, EventTail
from hpckit.run.lock import RunHeldError, hold_all
from hpckit.run.parse import read_spec
from hpckit.run.processes import Process, kill_all, spawn, sweep
from hpckit.run.spec import RunSpec

log = logging.getLogger(__name__)

TICK_S = 0.05
# What an agent may take beyond the grace period to end its workers and write its report.
REPORT_MARGIN_S = 10.0
_REQUESTS = {
    signal.SIGUSR2: Request.PREEMPT,
    signal.SIGTERM: Request.PREEMPT,
    signal.SIGINT: Request.STOP,
}
_PASSED_ON = {Request.PREEMPT: signal.SIGUSR2, Request.STOP: signal.SIGINT}


def supervise(run_path: str, submission: int, gpus: tuple[str, ...] | None = None) -> int:
    """Carry submission `submission` of the run at `run_path` to a final verdict; its exit status.

    Whatever keeps it from that is an event, so that whoever follows the run hears of it.

    Raises:
        RunHeldError: another supervisor holds the run.
    """
    run = RunDir(Path(run_path))
    run.logs.mkdir(exist_ok=True)
    logging.basicConfig(
        filename=run.logs / "supervisor.log",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        force=True,
    )
    with EventLog(run.events, submission=submission) as events:
        try:
            return _supervise(run, submission, gpus, events).exit_status
        except RunHeldError as error:
            events.emit("run_refused", error=str(error))
            raise
        except Exception as error:
            log.exception("the supervisor failed")
            events.emit("run_failed", error=f"{type(error).__name__}: {error}")
            raise


def _supervise(
    run: RunDir, submission: int, gpus: tuple[str, ...] | None, events: EventLog
) -> Verdict:
    _require_snapshot(run.code(submission))
    supervisor = Supervisor(run, submission, gpus, events)
    with hold_all(lock_paths(supervisor.spec, run), f"submission {submission} of {run.name}"):
        return supervisor.run()


def _require_snapshot(code: Path) -> None:
    """Raises RuntimeError unless this very file is the snapshot's: no other code is to run."""
    if not Path(__file__).resolve().is_relative_to(code.resolve()):
        raise RuntimeError(f"the code snapshot {code} is gone; start again with launch.py")


class Supervisor:
    """The generations of one submission."""

    def __init__(
        self, run: RunDir, submission: int, gpus: tuple[str, ...] | None, events: EventLog
    ) -> None:
        """Takes over the process's signals at once: from here on none is lost."""
        self._run = run
        self._submission = submission
        self._events = events
        self.spec: RunSpec = read_spec(run.spec(submission))
        self._gpus = visible_gpus(os.environ) if gpus is None else gpus
        self._request = Request.NONE
        self._past: list[Past] = []
        self._saved_step = 0  # of the newest committed checkpoint, as it was last seen
        for number in _REQUESTS:
            signal.signal(number, self._on_signal)

    def run(self) -> Verdict:
        """Generation after generation, to the final verdict."""
        self._events.emit("run_started", pid=os.getpid(), steps=self.spec.train.steps)
        self._saved_step = newest_step(self.spec, self._run)
        self._drill = Drill(self.spec.debug.drill.preempt_at, self._saved_step)
        store_log = self._run.logs / "store.log"
        with RendezvousStore(self.spec.cluster.address, _environment(), store_log) as store:
            try:
                verdict = self._one_generation(store)
                while not verdict.final:
                    if self._request is Request.STOP:
                        verdict = Verdict(Kind.STOPPED, True, "stopped between two generations")
                        self._record(verdict)
                    else:
                        verdict = self._one_generation(store)
            finally:
                self._end_services()
        self._events.emit("run_ended", verdict=verdict.kind, status=verdict.exit_status)
        return verdict

    def _end_services(self) -> None:
        """What trainers left in memory is made durable, then nothing of the run is left here."""
        root = checkpoint_root(self.spec, self._run)
        within_s = self.spec.cluster.grace_s + REPORT_MARGIN_S
        if not end_services(str(local_folder(root) or root), run_name(self.spec), within_s):
            self._events.emit("degraded", what="a checkpoint service is still writing")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._request = max(self._request, _REQUESTS[signal.Signals(number)])

    def _one_generation(self, store: RendezvousStore) -> Verdict:
        """Start a generation, stay with it to its end, and judge it."""
        store.ensure()
        swept = sweep(self._run.path)
        generation = max(self._run.generation_numbers(), default=0) + 1
        nodes = nodes_of_generation(self.spec, len(self._past))
        self._events.emit(
            "generation_started", generation=generation, nodes=nodes, from_step=self._saved_step
        )
        if swept:
            self._events.emit("strays_killed", generation=generation, pids=swept)
        self._generation = generation
        agents = self._start_agents(generation, nodes, store)
        asked, lost = self._watch(generation, agents, store)
        if self._request is asked:  # one that came later is for the next generation
            self._request = Request.NONE
        reports, silent = self._reports(generation, nodes)
        progress = self._has_saved()
        ending = Ending(asked, reports, (*lost, *silent), progress)
        verdict = judge(ending, self._past, self.spec.retry)
        self._conclude(verdict, reports)
        self._past.append(Past(verdict.kind, progress))
        return verdict

    def _start_agents(self, generation: int, nodes: int, store: RendezvousStore) -> list[Process]:
        launch = self.spec.launch
        devices = choose(self.spec.cluster.device, nodes * launch.gpus_per_node, self._gpus)
        if devices.note:
            log.warning(devices.note)
            self._events.emit("degraded", generation=generation, what=devices.note)
        threads = launch.threads_per_worker or _even_share(nodes * launch.gpus_per_node)
        arguments = [store.meet.host, str(store.meet.port), devices.kind, str(threads)]
        agents = []
        for node in range(nodes):
            at = NodeEnvironment(self._run, self._submission, generation, node, nodes)
            agents.append(self._start_agent(at, devices, arguments))
        return agents

    def _start_agent(self, at: NodeEnvironment, devices: Devices, arguments: list[str]) -> Process:
        logs = self._run.node_logs(at.generation, at.node)
        logs.mkdir(parents=True)
        env = _environment() | at.to_env()
        env["CUDA_VISIBLE_DEVICES"] = devices.of_node(at.node, self.spec.launch.gpus_per_node)
        command = [sys.executable, "-m", "hpckit.elastic.agent", *arguments]
        agent = spawn(command, env, logs / "agent.log", hold=HELD_SIGNALS)
        self._events.emit("agent_started", generation=at.generation, node=at.node, pid=agent.pid)
        return agent

    def _watch(
        self, generation: int, agents: list[Process], store: RendezvousStore
    ) -> tuple[Request, list[str]]:
        """Until all agents have ended: what they were asked, and what else was lost meanwhile."""
        tail = EventTail(self._run.events, from_end=True)
        passed_on = Request.NONE
        lost: list[str] = []
        deadline: float | None = None
        while any(agent.poll() is None for agent in agents):
            for event in tail.read():
                if event.kind == "step":
                    self._drill.at_step(event["step"])
            if self._request > passed_on:
                passed_on = self._request
                self._pass_on(passed_on, generation, agents)
                deadline = time.monotonic() + self.spec.cluster.grace_s + REPORT_MARGIN_S
            if not store.alive() and "the rendezvous store" not in lost:
                lost.append("the rendezvous store")
            overdue = deadline is not None and time.monotonic() > deadline
            if lost or overdue or any(agent.poll() for agent in agents):
                self._end(agents)
            time.sleep(TICK_S)
        return passed_on, lost

    def _reports(self, generation: int, nodes: int) -> tuple[tuple[ExitReport, ...], list[str]]:
        """The reports that the agents left, and who left none."""
        paths = [self._run.exit_report(generation, node) for node in range(nodes)]
        found = [ExitReport.read(path) for path in paths]
        silent = [f"the agent of node {n}" for n, report in enumerate(found) if report is None]
        return tuple(report for report in found if report), silent

    def _pass_on(self, request: Request, generation: int, agents: list[Process]) -> None:
        log.info("%s: telling the agents", request.name.lower())
        self._events.emit("asked", generation=generation, request=request.name.lower())
        for agent in agents:
            if agent.poll() is None:
                agent.send_signal(_PASSED_ON[request])

    def _end(self, agents: list[Process]) -> None:
        """One node's part is over for good, so is the generation: end the others."""
        for agent in agents:
            if agent.poll() is None:
                agent.terminate()
        deadline = time.monotonic() + REPORT_MARGIN_S
        while any(agent.poll() is None for agent in agents) and time.monotonic() < deadline:
            time.sleep(TICK_S)
        kill_all(agents)

    def _conclude(self, verdict: Verdict, reports: tuple[ExitReport, ...]) -> None:
        """Say how the generation ended, in the log, in the events and in `verdict.json`."""
        log.info("generation %d: %s (%s)", self._generation, verdict.kind, verdict.reason)
        self._events.emit(
            "generation_ended",
            generation=self._generation,
            verdict=verdict.kind,
            reason=verdict.reason,
            final=verdict.final,
            step=min((report.step for report in reports), default=0),
            saved_step=self._saved_step,
        )
        self._record(verdict)

    def _record(self, verdict: Verdict) -> None:
        """Write `verdict.json`; on a full disk the log and the events have to do."""
        record = {
            **asdict(verdict),
            "generation": self._generation,
            "submission": self._submission,
            "saved_step": self._saved_step,
            "steps": self.spec.train.steps,
            "time": time.time(),
        }
        try:
            write_json(self._run.verdict, record)
        except OSError as error:
            log.error("verdict.json is not written: %s", error)

    def _has_saved(self) -> bool:
        """Look at the store again: whether there is a newer checkpoint than the time before.

        A store that is out of reach now is no reason to give up the run; no progress is counted.
        """
        before = self._saved_step
        try:
            self._saved_step = newest_step(self.spec, self._run)
        except CheckpointError as error:
            what = f"cannot look at the checkpoints: {error}"
            log.warning(what)
            self._events.emit("degraded", generation=self._generation, what=what)
        return self._saved_step > before


def newest_step(spec: RunSpec, run: RunDir) -> int:
    """Step of the newest committed checkpoint of the run; 0 where there is none."""
    found = list_run(checkpoint_root(spec, run), run_name(spec))
    return max((info.step for info in found if info.state == "committed"), default=0)


def _environment() -> dict[str, str]:
    """This process's, without what submitit and its own launcher put there for it alone."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SUBMITIT_")}


def _even_share(workers: int) -> int:
    return max(1, len(os.sched_getaffinity(0)) // workers)
