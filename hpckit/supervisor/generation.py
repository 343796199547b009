"""One generation of a run: its start, its watch and its end with a verdict."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hpckit.agent.message_channel import Message
from hpckit.agent.verdict_record import Verdict
from hpckit.events.schema import Degraded, DegradedSubject, GenerationStarted, NodesChosen
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.supervisor.failure_context import failure_context
from hpckit.supervisor.generation_history import GenerationHistory
from hpckit.supervisor.generation_watch import GenerationWatch
from hpckit.supervisor.job_resources import JobResources
from hpckit.supervisor.node_selection.node_shortage import blamed
from hpckit.supervisor.node_selection.node_wait import HELLO_S, wait_for_nodes
from hpckit.supervisor.verdict import (
    GenerationEnd,
    PastGeneration,
    judge_generation,
    place_of_end,
    repeats_of,
    words_before_first_step,
)

log = logging.getLogger(__name__)


class WorkerGeneration:
    """The next generation of a run."""

    def __init__(self, resources: JobResources, history: GenerationHistory) -> None:
        self._resources, self._history = resources, history
        self._run, self._spec = resources.supervised.run, resources.supervised.spec
        self._events = resources.supervised.events
        self._agents, self._requests = resources.agents, resources.controls.requests
        self.number = max(self._run.generation_numbers(), default=0) + 1
        self._from_step = resources.saved_step.step
        self._required = history.required_nodes(self._spec)

    @property
    def _has_own_nodes(self) -> bool:
        """Whether nodes are machines of a Slurm job, and not simulated on this one."""
        return self._resources.supervised.job is not None

    def run(self) -> Verdict:
        """Runs the generation from the start of its agents to its end, and returns the verdict,
        which is recorded."""
        self._start_agents()
        hellos = wait_for_nodes(
            self._agents, self._required, self._history.nodes, self._resources.is_asked
        )
        unhealthy = self._resources.problems.report_unhealthy(self.number, self._agents.unhealthy())
        absent = () if self._requests.current else self._absent_nodes()
        if not hellos:
            return self._judge_unstarted(unhealthy, absent)
        self._start_workers(hellos)
        watch = GenerationWatch(self.number, self._resources, self._history)
        asked = watch.run()
        return self._judge_started(asked, watch.eviction)

    def _start_agents(self) -> None:
        """Starts the agents that are missing on the nodes of the job."""
        self._resources.store.clear()
        self._events.emit(
            GenerationStarted(
                generation=self.number, nodes=self._required.wanted, from_step=self._from_step
            )
        )
        with failure_context(f"make the folder for the logs of generation {self.number}"):
            self._run.generation_logs(self.number).mkdir(parents=True)
        with failure_context("start the agents"):
            self._agents.start_agents(range(self._resources.nodes.count), self.number)

    def _start_workers(self, hellos: Mapping[int, Message]) -> None:
        """Has the agents of these nodes start the workers of this generation."""
        is_memory_here = self._history.snapshot_holders.are_among(hellos)
        setup = self._resources.nodes.generation_setup(
            self.number, hellos, self._resources.store, is_memory_here=is_memory_here
        )
        if setup.note:
            log.warning(setup.note)
            subject = DegradedSubject.DEVICES
            self._events.emit(Degraded(subject=subject, generation=self.number, what=setup.note))
        if self._spec.elastic.spares or len(hellos) < self._required.wanted:
            self._events.emit(
                NodesChosen(
                    generation=self.number,
                    nodes=sorted(hellos),
                    hosts=[str(hello["host"]) for hello in hellos.values()],
                    wanted=self._required.wanted,
                )
            )
        self._history.add_start(hellos)
        self._agents.start_generation(setup.starts)

    def _judge_started(self, asked: WorkerRequest, eviction: str | None) -> Verdict:
        """Judges the generation after its agents have reported or are lost.

        Args:
            asked: the request that was passed on to it.
            eviction: why slow nodes are replaced, if the request was made for that alone.
        """
        lost, replaced = self._agents.lost(), self._agents.replaced()
        if self._has_own_nodes:  # Slurm ends every process that a step left behind
            self._history.snapshot_holders.record_loss(lost)
        self._requests.complete(asked)
        if asked is WorkerRequest.NONE:
            self._resources.problems.report_lost(self.number, lost)
            self._resources.problems.report_replaced(self.number, replaced)
        names = self._agent_names([*lost, *replaced])
        reports = self._agents.reports()
        return self._judge(GenerationEnd(asked, reports, names, False, eviction=eviction))

    def _judge_unstarted(self, unhealthy: tuple[str, ...], absent: tuple[str, ...]) -> Verdict:
        """Judges the generation if it could not start, because of these nodes or of a request."""
        asked = self._requests.wait_until_known()
        self._requests.complete(asked)
        if asked is not WorkerRequest.NONE:
            return self._judge(GenerationEnd(asked, (), (), False))
        self._history.add_shortage(unhealthy)
        lost: tuple[str, ...] = ()
        if not unhealthy:
            silent = set(range(self._resources.nodes.count)) - self._agents.hellos().keys()
            lost = () if absent else self._agent_names(silent)
            if self._has_own_nodes:
                self._history.snapshot_holders.record_loss(silent)
        return self._judge(GenerationEnd(asked, (), lost, False, unhealthy, absent))

    def _absent_nodes(self) -> tuple[str, ...]:
        """Reports the nodes on which no agent started, and returns them, each with the last line of
        its log."""
        nodes, problems = self._resources.nodes, self._resources.problems
        log_lines = {node: nodes.logs.last_line(node) for node in self._agents.absent(HELLO_S)}
        to_blame = blamed(log_lines, nodes.count)
        problems.report_absent(self.number, {node: log_lines[node] for node in to_blame})
        return tuple(
            f"{problems.name(node)} ({line or 'its log is empty'})"
            for node, line in log_lines.items()
        )

    def _agent_names(self, nodes: Iterable[int]) -> tuple[str, ...]:
        return tuple(
            f"the agent of {self._resources.problems.name(node)}" for node in sorted(nodes)
        )

    def _judge(self, seen: GenerationEnd) -> Verdict:
        """Judges the generation and records the verdict.

        Args:
            seen: the end of the generation, without the fields that are determined here.
        """
        saved_step = self._resources.saved_step
        is_time_up = (
            seen.request is WorkerRequest.PREEMPT
            and seen.eviction is None
            and self._resources.controls.cause.is_time_up()
        )
        progress = saved_step.update(self.number)
        end = replace(
            seen,
            progress=progress,
            is_time_up=is_time_up,
            from_step=self._from_step,
            is_program=self._spec.command is not None,
        )
        verdict = judge_generation(end, self._history.past, self._spec.retry)
        if end.unhealthy and not self._has_own_nodes and end.request is WorkerRequest.NONE:
            verdict = replace(verdict, final=True)  # there are no other nodes
        this = PastGeneration(
            verdict.kind,
            progress,
            words_before_first_step(end),
            place_of_end(end),
            repeats_of(end, self._history.past),
        )
        self._resources.controls.recorder.record_end(
            self.number, verdict, end.reports, saved_step.step, this
        )
        self._history.past.append(this)
        return verdict
