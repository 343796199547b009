"""Watches a generation from the start of its workers to the reports of all its agents."""

from __future__ import annotations

import logging
import time

from hpckit.events.event_log import EventTail
from hpckit.events.schema import (
    Degraded,
    DegradedSubject,
    ForkUnusable,
    LeaveRequested,
    StepLogged,
    StragglerCost,
    StragglerEvicted,
    StragglerKept,
    TrainingStarted,
    WrongComputation,
)
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.ipc.rendezvous_names import participants
from hpckit.supervisor.agents.hang_inquiry import HangInquiry
from hpckit.supervisor.generation_history import GenerationHistory
from hpckit.supervisor.job_resources import JobResources
from hpckit.supervisor.node_selection.straggler_eviction import (
    EvictionAnswer,
    EvictionDecision,
    NodeSupply,
    decide_eviction,
    eviction_result,
)
from hpckit.supervisor.supervised_run import REPORT_MARGIN_S

log = logging.getLogger(__name__)

TICK_S = 0.05
READ_EVENTS_S = 1.0
"""Seconds between two reads of the events that other processes write; each read opens a file on a
shared disk."""


class GenerationWatch:
    """The watch over one generation, whose workers have been started."""

    def __init__(self, number: int, resources: JobResources, history: GenerationHistory) -> None:
        """
        Args:
            number: the number of the generation.
        """
        self._number, self._resources, self._history = number, resources, history
        self._events = resources.supervised.events
        self._tail = EventTail(resources.supervised.run.events, from_end=True)
        self._next_read_s = 0.0
        self._request = WorkerRequest.NONE  # passed on to the agents
        self._deadline_s: float | None = None  # for their reports after a request
        supervised = resources.supervised
        self._hangs = HangInquiry(
            resources.agents,
            supervised.events,
            supervised.run,
            number,
            supervised.spec.launch.nproc_per_node,
        )
        self._eviction: EvictionDecision | None = None
        self._answer: EvictionAnswer | None = None  # the newest one, which is reported

    @property
    def eviction(self) -> str | None:
        """Why the generation was ended to replace slow nodes; None: it was not, or another request
        came too."""
        is_alone = not self._resources.controls.requests.has_any()
        return self._eviction.reason if self._eviction is not None and is_alone else None

    def run(self) -> WorkerRequest:
        """Watches until all agents have reported or are lost, and returns the strongest request
        that was passed on to them."""
        agents = self._resources.agents
        while agents.is_running():
            asked = self._resources.read_requests()
            self._read_agents()
            self._hangs.poll()
            self._read_events_if_due()
            if asked > self._request:
                self._pass_on(asked)
                self._deadline_s = time.monotonic() + self._resources.supervised.report_limit_s
            if self._is_overdue() or agents.lost() or agents.replaced() or agents.has_failed():
                agents.end_generation(
                    REPORT_MARGIN_S
                )  # the failed part of one node ends the generation
            time.sleep(TICK_S)
        self._hangs.close()
        self._read_events()
        if self._request is not WorkerRequest.NONE:
            asked = self._resources.controls.requests.wait_until_known()
            if asked > self._request:  # a person's cancellation became known only now
                self._pass_on(asked)
        return self._request

    def _read_agents(self) -> None:
        """Reads what the agents report, and starts agents again where they are missing."""
        agents, supervised = self._resources.agents, self._resources.supervised
        agents.read_messages()
        disconnected = self._resources.store.disconnected()
        agents.suspect(participants(disconnected, supervised.run.name, self._number))
        agents.restart_missing()
        self._resources.problems.report_unhealthy(self._number, agents.unhealthy())  # spares, too

    def _read_events_if_due(self) -> None:
        if self._resources.drill.is_to_come or time.monotonic() > self._next_read_s:
            self._next_read_s = time.monotonic() + READ_EVENTS_S
            self._read_events()

    def _read_events(self) -> None:
        """Reads the events that other processes have written since the last call."""
        for event in self._tail.read():
            self._history.evictions.take(event)
            match event:
                case StepLogged():
                    self._resources.drill.at_step(event.step)
                    self._judge_eviction(event)
                case StragglerCost() if event.nodes:
                    self._consider_eviction(event)
                case TrainingStarted():
                    self._history.snapshot_holders.record_training(self._history.nodes)
                case WrongComputation() if event.is_excluded:
                    self._leave_out(event)
                case ForkUnusable():
                    self._report_unusable_fork(event.why)

    def _judge_eviction(self, event: StepLogged) -> None:
        """Emits the result of an eviction once enough steps have been recorded since."""
        if event.generation != self._number or not self._history.evictions.has_unjudged:
            return
        result = eviction_result(self._history.evictions.events())
        if result is not None:
            self._history.evictions.take(result)
            self._events.emit(result)

    def _consider_eviction(self, event: StragglerCost) -> None:
        """Decides whether the slow nodes of a window are replaced, and begins to."""
        supervised = self._resources.supervised
        elastic, job = supervised.spec.elastic, supervised.job
        is_current = event.generation == self._number and self._request is WorkerRequest.NONE
        if elastic.evict_stragglers is None or not is_current:
            return
        nodes = range(self._resources.nodes.count)
        supply = NodeSupply(
            names=[f"node {node}" if job is None else job.hosts[node] for node in nodes],
            spares=len(self._resources.agents.hellos().keys() - set(self._history.nodes)),
            has_next_job=job is not None
            and (self._resources.chain is not None or supervised.spec.launch.is_requeued),
        )
        history = self._history.evictions.events()
        decision = decide_eviction(history, elastic, supply, time.time())
        if decision.event is not None:
            self._evict(decision, decision.event)
        elif decision.answer is not self._answer:
            log.info("no node is replaced: %s", decision.reason)
            self._events.emit(
                StragglerKept(
                    generation=self._number,
                    step=event.step,
                    hosts=[supply.names[node] for node in event.nodes],
                    answer=decision.answer,
                    reason=decision.reason,
                )
            )
        self._answer = decision.answer

    def _evict(self, decision: EvictionDecision, event: StragglerEvicted) -> None:
        """Has the ranks save and leave, and leaves out the slow nodes from then on."""
        log.warning("replacing %s: %s", ", ".join(event.hosts), decision.reason)
        self._eviction = decision
        self._history.is_evicted_by_next_job = event.by == "job"
        self._events.emit(event)
        for node in event.nodes:
            problem = f"straggler: it costs {event.share:.1%} of each step"
            self._resources.agents.leave_out(node, [problem])
        self._pass_on(WorkerRequest.PREEMPT)
        self._deadline_s = time.monotonic() + self._resources.supervised.report_limit_s

    def _leave_out(self, event: WrongComputation) -> None:
        """Has later generations do without the nodes that compute wrongly."""
        for node in sorted(set(event.nodes)):
            self._resources.agents.leave_out(node, [event.what])
        agents = self._resources.agents
        self._resources.problems.report_unhealthy(self._number, agents.unhealthy())

    def _report_unusable_fork(self, why: str) -> None:
        """Reports once for a job that workers are not forked from a preloaded process."""
        if not self._history.is_unusable_fork_reported:
            self._history.is_unusable_fork_reported = True
            what = f"workers start without launch.preload: {why}"
            self._events.emit(
                Degraded(subject=DegradedSubject.FORK_SERVER, generation=self._number, what=what)
            )

    def _is_overdue(self) -> bool:
        return self._deadline_s is not None and time.monotonic() > self._deadline_s

    def _pass_on(self, request: WorkerRequest) -> None:
        """Passes the request on to the agents. A stop also cancels the successor job immediately,
        as Slurm may end this process before its verdict."""
        self._request, name = request, request.name.lower()
        log.info("requesting the agents to end the generation: %s", name)
        self._events.emit(LeaveRequested(generation=self._number, request=name))
        self._resources.agents.ask(request)
        if request is WorkerRequest.STOP and self._resources.chain is not None:
            self._resources.chain.drop()
