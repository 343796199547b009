"""The supervisor: one generation of the job after the other, until a verdict is final.

It is the batch process: submitit calls `supervise` with nothing but the run directory and the
number of the submission, so nothing stale is ever pickled.

What it is asked by signals, `requests` tells. On Slurm a preemption is the end of the job, and its
successor goes on.
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
"""Seconds between two looks at the events that others write: each opens a file on a shared disk."""
# What an agent may take beyond the grace period to end its workers and write its report.
REPORT_MARGIN_S = 10.0


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
            status = _supervise(run, submission, gpus, events)
        except RunHeldError as error:
            events.emit("run_refused", error=str(error))
            raise
        except Exception as error:
            log.exception("the supervisor failed")
            events.emit("run_failed", error=describe_failure(error))
            raise
    if status and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        sys.exit(status)  # submitit's process ends with 0 otherwise, and the job as a success
    return status


def _supervise(run: RunDir, submission: int, gpus: tuple[str, ...] | None, events: EventLog) -> int:
    """The exit status."""
    _require_snapshot(run.code(submission))
    supervisor = Supervisor(run, submission, gpus, events)
    what = f"submission {submission} of {run.name}"

    def is_ending(error: RunHeldError) -> bool:
        """Whether it is worth waiting for who holds the run."""
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
            goes_on = True  # what fails now is nobody's decision
            verdict = supervisor.run()
            goes_on = not verdict.final
    finally:
        job = supervisor.job_to_requeue
        if job is not None and goes_on:
            requeue(run, supervisor.spec, job, events)
    return verdict.exit_status


def _require_snapshot(code: Path) -> None:
    """Raises RuntimeError unless this very file is the snapshot's: no other code is to run."""
    if not Path(__file__).resolve().is_relative_to(code.resolve()):
        raise RuntimeError(f"the code snapshot {code} is gone; start again with hpckit launch")


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
        self._job: Allocation | None = None  # None: it is none of Slurm's
        self.job_to_requeue: str | None = None
        """The job that goes on by being run again."""
        self._requests = SupervisorRequests()
        self._past: list[PastGeneration] = []
        self._past_before = 0  # generations of jobs before this one
        self._holders = SnapshotHolders()
        self._shortages: list[NodeShortage] = []  # of the last generations, which could not begin
        self._took_part: tuple[int, ...] = ()  # nodes of the generation before
        self._saved = SavedStep(self.spec, run, events)
        self._conclusions = GenerationRecorder(run, self.spec, submission, events)
        self._chain: JobChain | None = None
        self._are_forks_unusable = False  # which is said once
        self._from_step = 0  # of the generation under way

    def run(self) -> Verdict:
        """Generation after generation, to the final verdict."""
        self._conclusions.begin()
        if self.spec.cluster.kind == "slurm":
            self._job = allocation(os.environ)
            leave_array(os.environ)
        self._fitness = NodeProblemReporter(self._job, self._events)
        self._leaving = TerminationCause(self._run, self._job, self.spec.cluster, self._events)
        job = {} if self._job is None else {"job": self._job.job, "hosts": list(self._job.hosts)}
        self._events.emit("run_started", pid=os.getpid(), steps=last_step(self.spec), **job)
        told = read_events(self._run.events)
        self._past = past_of(told)
        self._past_before = len(self._past)
        with self._continued(told) as self._chain:
            self._prepare(told)
            verdict = self._supervised()
        self._conclusions.leave(verdict, self._requests.has_any)
        self._events.emit("run_ended", verdict=verdict.kind, status=verdict.exit_status)
        return verdict

    def _prepare(self, told: Sequence[Event]) -> None:
        with failure_context("make folders of the run's containers"):
            self._nodes = self._find_nodes()
        with failure_context("end what an earlier supervisor has left on this node"):
            if swept := kill_strays(self._run.path):
                self._events.emit("strays_killed", pids=swept)
        self._saved.begin(told)
        self._drill = PreemptionDrill(self.spec.debug.drill.preempt_at, self._saved.now)

    def _supervised(self) -> Verdict:
        """With agents, which have time to write what they hold once the last generation is over:
        Slurm may give this process less, so what is to become of the successor is said before."""
        with (
            RendezvousStore(self._nodes.address) as store,
            AgentPool(
                self._nodes.start_agent, self._events, self._drain_s, self.spec.health
            ) as crew,
        ):
            try:
                verdict = self._generations(store, crew)
            finally:
                if self._job is None:
                    self._end_services()
            if self._chain is not None:
                self._chain.drop() if verdict.final else self._chain.keep(KEEP_S)
            return verdict

    @property
    def _drain_s(self) -> float | None:
        """For agents whose nodes are machines of their own."""
        return None if self._job is None else self.spec.cluster.grace_s + REPORT_MARGIN_S

    def find_job(self) -> str | None:
        """The number of the job that this is; None: it is none of Slurm's.

        Raises:
            OSError, subprocess.SubprocessError: Slurm does not tell.
        """
        return allocation(os.environ).job if self.spec.cluster.kind == "slurm" else None

    def _find_nodes(self) -> JobNodes:
        if self._job is not None:
            return SlurmNodes(self.spec, self._run, self._submission, self._job)
        return LocalNodes(self.spec, self._run, self._submission, self._gpus)

    def _generations(self, store: RendezvousStore, crew: AgentPool) -> Verdict:
        verdict = self._one_generation(store, crew)
        while not verdict.final:
            if self._job is not None and self._shortages and not is_job_spent(self._shortages):
                pause(crew, lambda: self._hear(crew) is not WorkerRequest.NONE)
            self._hear(crew)
            asked = self._requests.settled()
            if asked is WorkerRequest.STOP:
                verdict = Verdict(VerdictKind.STOPPED, True, "stopped between two generations")
                self._conclusions.record(self._generation, verdict, self._saved.now)
            elif self._has_to_leave(asked):
                break
            else:
                verdict = self._one_generation(store, crew)
        return verdict

    def _has_to_leave(self, asked: WorkerRequest) -> bool:
        """Slurm wants the nodes back, or they are too few: the next generation is another job's."""
        is_asked = self._past[-1].kind in LEAVES or asked is WorkerRequest.PREEMPT
        return self._job is not None and (is_asked or is_job_spent(self._shortages))

    def _continued(self, told: Sequence[Event]) -> AbstractContextManager[JobChain | None]:
        """See to it that the run goes on after this job, by another one that is queued now or by
        itself."""
        how = self.spec.launch.continuation
        if self._job is None or how == "none" or is_hopeless(silent_jobs(told), self._events):
            return nullcontext()
        if how == "requeue":
            self.job_to_requeue = self._job.job
            return nullcontext()
        return queued_successor(self._run, self.spec, self._submission, self._job, self._events)

    def _end_services(self) -> None:
        """What trainers left in memory is made durable, then nothing of the run is left here."""
        within_s = self.spec.cluster.grace_s + REPORT_MARGIN_S
        if not end_services(*store_and_name(self.spec, self._run), within_s):
            self._events.emit("degraded", what="a checkpoint service is still writing")

    def _hear(self, crew: AgentPool) -> WorkerRequest:
        return self._requests.hear(crew.signals(), self._leaving.is_cancelled)

    def _one_generation(self, store: RendezvousStore, crew: AgentPool) -> Verdict:
        """Start a generation, stay with it to its end, and judge it."""
        store.clear()
        generation = max(self._run.generation_numbers(), default=0) + 1
        need = self._need()
        self._events.emit(
            "generation_started",
            generation=generation,
            nodes=need.wanted,
            from_step=self._saved.now,
        )
        self._generation, self._from_step = generation, self._saved.now
        with failure_context(f"make the folder for the logs of generation {generation}"):
            self._run.generation_logs(generation).mkdir(parents=True)
        with failure_context("start the agents"):
            crew.call(range(self._nodes.count), generation)
        there = wait_for_nodes(
            crew, need, self._took_part, lambda: self._hear(crew) is not WorkerRequest.NONE
        )
        unhealthy = self._fitness.tell(generation, crew.unhealthy())
        absent = () if self._requests.now else self._absent(crew)
        if not there:
            return self._without(crew, unhealthy, absent)
        self._shortages.clear()
        self._begin(crew, store, there, need)
        asked = self._watch(crew, store)
        lost, fallen = crew.lost(), crew.fallen()
        if self._job is not None:  # Slurm ends all that a step has left
            self._holders.lost(lost)
        self._requests.end(asked)
        if asked is WorkerRequest.NONE:
            self._fitness.tell_lost(generation, lost)
            self._fitness.tell_fallen(generation, fallen)
        return self._judge(GenerationEnd(asked, crew.reports(), self._gone(lost + fallen), False))

    def _without(
        self, crew: AgentPool, unhealthy: tuple[str, ...], absent: tuple[str, ...]
    ) -> Verdict:
        """The end of a generation that could not begin: for these nodes, or as it was asked to."""
        asked = self._requests.settled()
        self._requests.end(asked)
        if asked is not WorkerRequest.NONE:
            return self._judge(GenerationEnd(asked, (), (), False))
        self._shortages.append(shortage_of(self._took_part, unhealthy))
        gone: tuple[str, ...] = ()
        if not unhealthy:
            silent = set(range(self._nodes.count)) - crew.hellos().keys()
            gone = () if absent else self._gone(silent)
            if self._job is not None:
                self._holders.lost(silent)
        return self._judge(GenerationEnd(asked, (), gone, False, unhealthy, absent))

    def _absent(self, crew: AgentPool) -> tuple[str, ...]:
        """Nodes that no agent came on, and what was said of it."""
        said = {node: self._nodes.logs.last_words(node) for node in crew.absent(HELLO_S)}
        to_blame = blamed(said, self._nodes.count)
        self._fitness.tell_absent(self._generation, {node: said[node] for node in to_blame})
        return tuple(
            f"{self._fitness.name(node)} ({words or 'not a word in its log'})"
            for node, words in said.items()
        )

    def _gone(self, nodes: Iterable[int]) -> tuple[str, ...]:
        return tuple(f"the agent of {self._fitness.name(node)}" for node in sorted(nodes))

    def _judge(self, seen: GenerationEnd) -> Verdict:
        """
        Args:
            seen: but for what is looked up here.
        """
        is_over = seen.request is WorkerRequest.PREEMPT and self._leaving.is_time_up()
        progress = self._saved.has_grown(self._generation)
        ending = replace(seen, progress=progress, is_time_up=is_over, from_step=self._from_step)
        verdict = judge(ending, self._past, self.spec.retry)
        if seen.unhealthy and self._job is None and seen.request is WorkerRequest.NONE:
            verdict = replace(verdict, final=True)  # there are no other nodes
        words = words_before_first_step(ending)
        self._conclusions.conclude(self._generation, verdict, seen.reports, self._saved.now, words)
        self._past.append(PastGeneration(verdict.kind, progress, words))
        return verdict

    def _need(self) -> NodeRequirement:
        wanted = nodes_of_generation(self.spec, len(self._past) - self._past_before)
        return NodeRequirement(
            wanted, min(wanted, fewest_nodes(self.spec)), partial(fits, self.spec)
        )

    def _begin(
        self,
        crew: AgentPool,
        store: RendezvousStore,
        there: Mapping[int, Message],
        need: NodeRequirement,
    ) -> None:
        orders = self._nodes.orders(
            self._generation, there, store, is_memory_here=self._holders.are_here(there)
        )
        if orders.note:
            log.warning(orders.note)
            self._events.emit("degraded", generation=self._generation, what=orders.note)
        if self.spec.elastic.spares or len(there) < need.wanted:
            self._events.emit(
                "nodes_chosen",
                generation=self._generation,
                nodes=sorted(there),
                hosts=[str(hello["host"]) for hello in there.values()],
                wanted=need.wanted,
            )
        self._took_part = tuple(there)
        crew.begin(orders.starts)

    def _watch(self, crew: AgentPool, store: RendezvousStore) -> WorkerRequest:
        """Until all agents have reported: what they were asked."""
        tail, follow_s = EventTail(self._run.events, from_end=True), 0.0
        passed_on = WorkerRequest.NONE
        deadline: float | None = None
        while crew.is_under_way():
            asked = self._hear(crew)
            crew.tick()
            crew.suspect(participants(store.left(), self._run.name, self._generation))
            crew.recall()
            self._fitness.tell(self._generation, crew.unhealthy())  # nodes that stand by, too
            if self._drill.is_to_come or time.monotonic() > follow_s:
                follow_s = time.monotonic() + FOLLOW_S
                self._follow(tail)
            if asked > passed_on:
                passed_on = asked
                self._pass_on(passed_on, crew)
                deadline = time.monotonic() + self.spec.cluster.grace_s + REPORT_MARGIN_S
            overdue = deadline is not None and time.monotonic() > deadline
            if overdue or crew.lost() or crew.fallen() or crew.has_failed():
                crew.end(REPORT_MARGIN_S)  # one node's part is over for good, so is the generation
            time.sleep(TICK_S)
        self._follow(tail)
        asked = max(passed_on, self._requests.settled()) if passed_on else passed_on
        if asked > passed_on:  # only now it is known that it was a person
            self._pass_on(asked, crew)
        return asked

    def _follow(self, tail: EventTail) -> None:
        for event in tail.read():
            if event.kind == "step":
                self._drill.at_step(event["step"])
            elif event.kind == "training_started":
                self._holders.trained(self._took_part)
            elif event.kind == "fork_unusable" and not self._are_forks_unusable:
                self._are_forks_unusable = True
                what = f"workers do without launch.preload: {event['why']}"
                self._events.emit("degraded", generation=self._generation, what=what)

    def _pass_on(self, request: WorkerRequest, crew: AgentPool) -> None:
        log.info("%s: telling the agents", request.name.lower())
        self._events.emit("asked", generation=self._generation, request=request.name.lower())
        crew.ask(request)
        if request is WorkerRequest.STOP and self._chain is not None:
            self._chain.drop()  # at once: Slurm may end this process before its verdict
