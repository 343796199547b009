"""The supervisor, which runs one generation of the job after the other until a verdict is final.

It is the batch process: submitit calls `supervise` with only the run directory and the number of
the submission, so that no stale state is ever pickled.

`hpckit.supervisor.signal_requests` describes what signals request of it. On Slurm, a preemption
ends the job, and its successor continues the run.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from checkpointing.service.client.service_stop import end_services
from hpckit.agent.device_assignment import visible_gpus
from hpckit.agent.message_channel import Message
from hpckit.agent.rendezvous_store import RendezvousStore
from hpckit.agent.verdict_record import LEAVES, Verdict, VerdictKind
from hpckit.config.last_step import last_step
from hpckit.config.rules.violations import fewest_nodes, fits, nodes_of_generation
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import read_spec
from hpckit.events.event_log import Event, EventLog, EventTail, read_events
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.ipc.rendezvous_names import participants
from hpckit.rundir.directory import RunDir, lock_paths, store_and_name
from hpckit.rundir.lock import RunHeldError
from hpckit.slurm.allocation import Allocation, allocation, leave_array
from hpckit.submit.newest_checkpoint import SavedStep
from hpckit.supervisor.agents.agent_launch import JobNodes, LocalNodes, SlurmNodes
from hpckit.supervisor.agents.agent_pool import AgentPool
from hpckit.supervisor.continuation.job_chain import KEEP_S, JobChain, silent_jobs
from hpckit.supervisor.continuation.next_job import is_hopeless, queued_successor, requeue
from hpckit.supervisor.continuation.predecessor_job import (
    former_job,
    hold_after,
    is_given_up,
    is_needless,
)
from hpckit.supervisor.failure_context import describe_failure, failure_context
from hpckit.supervisor.generation_record import GenerationRecorder
from hpckit.supervisor.node_selection.node_choice import NodeRequirement
from hpckit.supervisor.node_selection.node_problem_events import NodeProblemReporter
from hpckit.supervisor.node_selection.node_shortage import (
    NodeShortage,
    blamed,
    is_job_spent,
    shortage_of,
)
from hpckit.supervisor.node_selection.node_wait import HELLO_S, pause, wait_for_nodes
from hpckit.supervisor.node_selection.snapshot_holders import SnapshotHolders
from hpckit.supervisor.preemption_drill import PreemptionDrill
from hpckit.supervisor.signal_requests import SupervisorRequests
from hpckit.supervisor.termination_cause import TerminationCause
from hpckit.supervisor.verdict import (
    GenerationEnd,
    PastGeneration,
    judge,
    past_of,
    words_before_first_step,
)
from hpckit.system.child_processes import kill_strays

log = logging.getLogger(__name__)

TICK_S = 0.05
FOLLOW_S = 1.0
"""Seconds between two reads of the events that other processes write; each read opens a file on a
shared disk."""
# Time that an agent may take beyond the grace to end its workers and write its report.
REPORT_MARGIN_S = 10.0


def supervise(run_path: str, submission: int, gpus: tuple[str, ...] | None = None) -> int:
    """Runs submission `submission` of the run at `run_path` until a final verdict, and returns its
    exit status.

    Any error that prevents this is also written as an event, for whoever follows the run.

    Raises:
        RunHeldError: another supervisor holds the run lock.
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
            status = _supervise(run, submission, gpus, events)
        except RunHeldError as error:
            events.emit("run_refused", error=str(error))
            raise
        except Exception as error:
            log.exception("the supervisor failed")
            events.emit("run_failed", error=describe_failure(error))
            raise
    if status and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        sys.exit(status)  # otherwise submitit's process ends with 0, and the job as a success
    return status


def _supervise(run: RunDir, submission: int, gpus: tuple[str, ...] | None, events: EventLog) -> int:
    """Returns the exit status."""
    _require_snapshot(run.code(submission))
    supervisor = Supervisor(run, submission, gpus, events)
    what = f"submission {submission} of {run.name}"

    def is_ending(error: RunHeldError) -> bool:
        """Returns whether to wait for the process that holds the run lock."""
        mine = supervisor.find_job()
        if mine is None or not is_given_up(former_job(read_events(run.events)), mine):
            return False
        events.emit("degraded", what=f"{error}; its job is over: waiting for its end")
        return True

    goes_on = False
    try:
        with hold_after(lock_paths(supervisor.spec, run), what, is_ending):
            if is_needless(run, supervisor.find_job(), events):
                return 0
            goes_on = True  # no verdict accounts for a failure from here on
            verdict = supervisor.run()
            goes_on = not verdict.final
    finally:
        job = supervisor.job_to_requeue
        if job is not None and goes_on:
            requeue(run, supervisor.spec, job, events)
    return verdict.exit_status


def _require_snapshot(code: Path) -> None:
    """Raises RuntimeError unless this file belongs to the code snapshot, as no other code may
    run."""
    if not Path(__file__).resolve().is_relative_to(code.resolve()):
        raise RuntimeError(f"the code snapshot {code} is gone; start again with hpckit launch")


class Supervisor:
    """Runs the generations of one submission."""

    def __init__(
        self, run: RunDir, submission: int, gpus: tuple[str, ...] | None, events: EventLog
    ) -> None:
        """Installs the signal handlers of the process, so that no signal is lost from here on."""
        self._run = run
        self._submission = submission
        self._events = events
        self.spec: RunSpec = read_spec(run.spec(submission))
        self._gpus = visible_gpus(os.environ) if gpus is None else gpus
        self._job: Allocation | None = None  # None: not in a Slurm job
        self.job_to_requeue: str | None = None
        """The job to requeue, if the run continues in this way."""
        self._requests = SupervisorRequests()
        self._past: list[PastGeneration] = []
        self._past_before = 0  # generations of jobs before this one
        self._snapshot_holders = SnapshotHolders()
        # of the last successive generations, which could not start
        self._shortages: list[NodeShortage] = []
        self._took_part: tuple[int, ...] = ()  # nodes of the previous generation
        self._saved_step = SavedStep(self.spec, run, events)
        self._recorder = GenerationRecorder(run, self.spec, submission, events)
        self._chain: JobChain | None = None
        self._are_forks_unusable = False  # set when this is reported, once
        self._from_step = 0  # of the present generation

    def run(self) -> Verdict:
        """Runs generations until the final verdict, and returns it."""
        self._recorder.begin()
        if self.spec.cluster.kind == "slurm":
            self._job = allocation(os.environ)
            leave_array(os.environ)
        self._problem_reporter = NodeProblemReporter(self._job, self._events)
        self._termination_cause = TerminationCause(
            self._run, self._job, self.spec.cluster, self._events
        )
        job = {} if self._job is None else {"job": self._job.job, "hosts": list(self._job.hosts)}
        self._events.emit("run_started", pid=os.getpid(), steps=last_step(self.spec), **job)
        written = read_events(self._run.events)
        self._past = past_of(written)
        self._past_before = len(self._past)
        with self._continuation(written) as self._chain:
            self._prepare(written)
            verdict = self._run_with_agents()
        self._recorder.leave(verdict, self._requests.has_any)
        self._events.emit("run_ended", verdict=verdict.kind, status=verdict.exit_status)
        return verdict

    def _prepare(self, written: Sequence[Event]) -> None:
        with failure_context("make folders of the run's containers"):
            self._nodes = self._find_nodes()
        with failure_context("end what an earlier supervisor has left on this node"):
            if swept := kill_strays(self._run.path):
                self._events.emit("strays_killed", pids=swept)
        self._saved_step.begin(written)
        self._drill = PreemptionDrill(self.spec.debug.drill.preempt_at, self._saved_step.now)

    def _run_with_agents(self) -> Verdict:
        """Runs generations with agents. Agents get time to write what they hold after the last
        generation. Slurm may leave this process less time, so the successor is kept or cancelled
        before that."""
        with (
            RendezvousStore(self._nodes.address) as store,
            AgentPool(
                self._nodes.start_agent, self._events, self._drain_s, self.spec.health
            ) as agents,
        ):
            try:
                verdict = self._run_generations(store, agents)
            finally:
                if self._job is None:
                    self._end_services()
            if self._chain is not None:
                self._chain.drop() if verdict.final else self._chain.keep(KEEP_S)
            return verdict

    @property
    def _drain_s(self) -> float | None:
        """Seconds for the agents to write what they hold, on nodes that are separate machines."""
        return None if self._job is None else self.spec.cluster.grace_s + REPORT_MARGIN_S

    def find_job(self) -> str | None:
        """Returns the number of this job, or None if it is not a Slurm job.

        Raises:
            OSError, subprocess.SubprocessError: Slurm does not answer.
        """
        return allocation(os.environ).job if self.spec.cluster.kind == "slurm" else None

    def _find_nodes(self) -> JobNodes:
        if self._job is not None:
            return SlurmNodes(self.spec, self._run, self._submission, self._job)
        return LocalNodes(self.spec, self._run, self._submission, self._gpus)

    def _run_generations(self, store: RendezvousStore, agents: AgentPool) -> Verdict:
        verdict = self._run_generation(store, agents)
        while not verdict.final:
            if self._job is not None and self._shortages and not is_job_spent(self._shortages):
                pause(agents, lambda: self._read_requests(agents) is not WorkerRequest.NONE)
            self._read_requests(agents)
            asked = self._requests.settled()
            if asked is WorkerRequest.STOP:
                verdict = Verdict(VerdictKind.STOPPED, True, "stopped between two generations")
                self._recorder.record(self._generation, verdict, self._saved_step.now)
            elif self._has_to_leave(asked):
                break
            else:
                verdict = self._run_generation(store, agents)
        return verdict

    def _has_to_leave(self, asked: WorkerRequest) -> bool:
        """Whether the next generation belongs to another job, as Slurm wants the nodes back or too
        few are left."""
        is_asked = self._past[-1].kind in LEAVES or asked is WorkerRequest.PREEMPT
        return self._job is not None and (is_asked or is_job_spent(self._shortages))

    def _continuation(self, written: Sequence[Event]) -> AbstractContextManager[JobChain | None]:
        """Prepares the continuation of the run after this job, by a successor job that is queued
        now or by a requeue."""
        how = self.spec.launch.continuation
        if self._job is None or how == "none" or is_hopeless(silent_jobs(written), self._events):
            return nullcontext()
        if how == "requeue":
            self.job_to_requeue = self._job.job
            return nullcontext()
        return queued_successor(self._run, self.spec, self._submission, self._job, self._events)

    def _end_services(self) -> None:
        """Makes snapshots in the memory of this machine durable, and ends the run's checkpoint
        services."""
        within_s = self.spec.cluster.grace_s + REPORT_MARGIN_S
        if not end_services(*store_and_name(self.spec, self._run), within_s):
            self._events.emit("degraded", what="a checkpoint service is still writing")

    def _read_requests(self, agents: AgentPool) -> WorkerRequest:
        return self._requests.hear(agents.signals(), self._termination_cause.is_cancelled)

    def _run_generation(self, store: RendezvousStore, agents: AgentPool) -> Verdict:
        """Starts a generation, runs it to its end, and returns the verdict."""
        store.clear()
        generation = max(self._run.generation_numbers(), default=0) + 1
        need = self._node_requirement()
        self._events.emit(
            "generation_started",
            generation=generation,
            nodes=need.wanted,
            from_step=self._saved_step.now,
        )
        self._generation, self._from_step = generation, self._saved_step.now
        with failure_context(f"make the folder for the logs of generation {generation}"):
            self._run.generation_logs(generation).mkdir(parents=True)
        with failure_context("start the agents"):
            agents.call(range(self._nodes.count), generation)
        hellos = wait_for_nodes(
            agents,
            need,
            self._took_part,
            lambda: self._read_requests(agents) is not WorkerRequest.NONE,
        )
        unhealthy = self._problem_reporter.tell(generation, agents.unhealthy())
        absent = () if self._requests.now else self._absent_nodes(agents)
        if not hellos:
            return self._judge_unstarted(agents, unhealthy, absent)
        self._shortages.clear()
        self._start_generation(agents, store, hellos, need)
        asked = self._watch(agents, store)
        lost, fallen = agents.lost(), agents.fallen()
        if self._job is not None:  # Slurm ends every process that a step left behind
            self._snapshot_holders.lost(lost)
        self._requests.end(asked)
        if asked is WorkerRequest.NONE:
            self._problem_reporter.tell_lost(generation, lost)
            self._problem_reporter.tell_fallen(generation, fallen)
        return self._judge(
            GenerationEnd(asked, agents.reports(), self._lost_agents(lost + fallen), False)
        )

    def _judge_unstarted(
        self, agents: AgentPool, unhealthy: tuple[str, ...], absent: tuple[str, ...]
    ) -> Verdict:
        """Judges a generation that could not start, because of these nodes or of a request."""
        asked = self._requests.settled()
        self._requests.end(asked)
        if asked is not WorkerRequest.NONE:
            return self._judge(GenerationEnd(asked, (), (), False))
        self._shortages.append(shortage_of(self._took_part, unhealthy))
        gone: tuple[str, ...] = ()
        if not unhealthy:
            silent = set(range(self._nodes.count)) - agents.hellos().keys()
            gone = () if absent else self._lost_agents(silent)
            if self._job is not None:
                self._snapshot_holders.lost(silent)
        return self._judge(GenerationEnd(asked, (), gone, False, unhealthy, absent))

    def _absent_nodes(self, agents: AgentPool) -> tuple[str, ...]:
        """Returns the nodes on which no agent came, each with the last line of its log."""
        log_lines = {node: self._nodes.logs.last_words(node) for node in agents.absent(HELLO_S)}
        to_blame = blamed(log_lines, self._nodes.count)
        self._problem_reporter.tell_absent(
            self._generation, {node: log_lines[node] for node in to_blame}
        )
        return tuple(
            f"{self._problem_reporter.name(node)} ({words or 'not a word in its log'})"
            for node, words in log_lines.items()
        )

    def _lost_agents(self, nodes: Iterable[int]) -> tuple[str, ...]:
        return tuple(f"the agent of {self._problem_reporter.name(node)}" for node in sorted(nodes))

    def _judge(self, seen: GenerationEnd) -> Verdict:
        """
        Args:
        seen: the end of the generation, without the fields that are determined here.
        """
        is_over = seen.request is WorkerRequest.PREEMPT and self._termination_cause.is_time_up()
        progress = self._saved_step.has_grown(self._generation)
        ending = replace(seen, progress=progress, is_time_up=is_over, from_step=self._from_step)
        verdict = judge(ending, self._past, self.spec.retry)
        if seen.unhealthy and self._job is None and seen.request is WorkerRequest.NONE:
            verdict = replace(verdict, final=True)  # there are no other nodes
        words = words_before_first_step(ending)
        self._recorder.conclude(
            self._generation, verdict, seen.reports, self._saved_step.now, words
        )
        self._past.append(PastGeneration(verdict.kind, progress, words))
        return verdict

    def _node_requirement(self) -> NodeRequirement:
        wanted = nodes_of_generation(self.spec, len(self._past) - self._past_before)
        return NodeRequirement(
            wanted, min(wanted, fewest_nodes(self.spec)), partial(fits, self.spec)
        )

    def _start_generation(
        self,
        agents: AgentPool,
        store: RendezvousStore,
        hellos: Mapping[int, Message],
        need: NodeRequirement,
    ) -> None:
        orders = self._nodes.orders(
            self._generation, hellos, store, is_memory_here=self._snapshot_holders.are_here(hellos)
        )
        if orders.note:
            log.warning(orders.note)
            self._events.emit("degraded", generation=self._generation, what=orders.note)
        if self.spec.elastic.spares or len(hellos) < need.wanted:
            self._events.emit(
                "nodes_chosen",
                generation=self._generation,
                nodes=sorted(hellos),
                hosts=[str(hello["host"]) for hello in hellos.values()],
                wanted=need.wanted,
            )
        self._took_part = tuple(hellos)
        agents.begin(orders.starts)

    def _watch(self, agents: AgentPool, store: RendezvousStore) -> WorkerRequest:
        """Watches the generation until all agents have reported, and returns the request passed on
        to them."""
        tail, follow_s = EventTail(self._run.events, from_end=True), 0.0
        requested = WorkerRequest.NONE
        deadline: float | None = None
        while agents.is_under_way():
            asked = self._read_requests(agents)
            agents.tick()
            agents.suspect(participants(store.left(), self._run.name, self._generation))
            agents.recall()
            self._problem_reporter.tell(self._generation, agents.unhealthy())  # spares, too
            if self._drill.is_to_come or time.monotonic() > follow_s:
                follow_s = time.monotonic() + FOLLOW_S
                self._follow_events(tail)
            if asked > requested:
                requested = asked
                self._pass_request_on(requested, agents)
                deadline = time.monotonic() + self.spec.cluster.grace_s + REPORT_MARGIN_S
            overdue = deadline is not None and time.monotonic() > deadline
            if overdue or agents.lost() or agents.fallen() or agents.has_failed():
                agents.end(REPORT_MARGIN_S)  # the failed part of one node ends the generation
            time.sleep(TICK_S)
        self._follow_events(tail)
        asked = max(requested, self._requests.settled()) if requested else requested
        if asked > requested:  # a person's cancellation became known only now
            self._pass_request_on(asked, agents)
        return asked

    def _follow_events(self, tail: EventTail) -> None:
        for event in tail.read():
            if event.kind == "step":
                self._drill.at_step(event["step"])
            elif event.kind == "training_started":
                self._snapshot_holders.trained(self._took_part)
            elif event.kind == "fork_unusable" and not self._are_forks_unusable:
                self._are_forks_unusable = True
                what = f"workers do without launch.preload: {event['why']}"
                self._events.emit("degraded", generation=self._generation, what=what)

    def _pass_request_on(self, request: WorkerRequest, agents: AgentPool) -> None:
        log.info("%s: telling the agents", request.name.lower())
        self._events.emit("asked", generation=self._generation, request=request.name.lower())
        agents.ask(request)
        if request is WorkerRequest.STOP and self._chain is not None:
            self._chain.drop()  # at once: Slurm may end this process before its verdict
