"""Has all nodes of a job measured before a generation, and leaves out those that are wrong or slow.

The measurement is like a generation of its own: it has a number and a folder for its logs, and the
agents start its workers. It has no verdict, and no failure of it ends the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpckit.agent.exit_report import NodeExit
from hpckit.agent.message_channel import Message
from hpckit.config.spec import DeepHealthSpec
from hpckit.events.event_log import read_events
from hpckit.events.schema import (
    DeepHealthEnded,
    DeepHealthProblemFound,
    Degraded,
    DegradedSubject,
)
from hpckit.supervisor.job_resources import JobResources
from hpckit.supervisor.node_selection.deep_health_schedule import measuring_reasons
from hpckit.supervisor.node_selection.node_choice import NodeRequirement
from hpckit.supervisor.node_selection.node_wait import wait_for_nodes
from hpckit.supervisor.supervised_run import REPORT_MARGIN_S
from hpckit.trainer.deep_health.health_figures import (
    HEALTH_REPORT,
    DeepHealthReport,
    HealthProblem,
    health_problems,
    is_judged,
)

log = logging.getLogger(__name__)

_TICK_S = 0.05


class DeepHealthCheck:
    """The measurement of the nodes before the next generation."""

    def __init__(self, resources: JobResources) -> None:
        self._resources = resources
        self._supervised, self._agents = resources.supervised, resources.agents
        self._run, self._events = self._supervised.run, self._supervised.events

    def run_if_due(self) -> None:
        """Measures the nodes if `health.deep` asks for it now. It returns early if the job is asked
        to end."""
        deep = self._supervised.spec.health.deep
        if deep is None or self._resources.is_asked():
            return
        hosts = [self._host(node) for node in range(self._resources.nodes.count)]
        events = read_events(self._run.events)
        reasons = measuring_reasons(events, hosts, time.time(), deep)
        if reasons:
            self._measure(deep, reasons)

    def _measure(self, deep: DeepHealthSpec, reasons: Sequence[str]) -> None:
        log.info("measuring the nodes: %s", "; ".join(reasons))
        begun_s = time.monotonic()
        number = max(self._run.generation_numbers(), default=0) + 1
        self._run.generation_logs(number).mkdir(parents=True)
        hellos = self._start_agents(number)
        if not hellos or not self._start_workers(number, hellos):
            return
        self._wait(deep.timeout_s)
        if self._resources.is_asked():
            return
        report, problem = self._report(number)
        if problem is not None:
            self._degrade(number, problem)
        nodes = list(hellos)
        found = health_problems(report, deep) if report is not None else []
        self._tell(number, deep, nodes, found)
        if report is not None and not is_judged(report):
            log.warning("too few nodes and ranks to tell which one is slow")
        self._events.emit(
            DeepHealthEnded(
                generation=number,
                hosts=[self._host(node) for node in nodes],
                seconds=round(time.monotonic() - begun_s, 3),
                reasons=list(reasons),
                is_complete=problem is None,
                found=[self._text(nodes, one) for one in found],
            )
        )

    def _start_agents(self, number: int) -> dict[int, Message]:
        """Returns the hellos of all healthy nodes, with spares."""
        count = self._resources.nodes.count
        self._resources.store.clear()
        self._agents.start_agents(range(count), number)
        need = NodeRequirement(count, 1, lambda nodes: True)
        return wait_for_nodes(self._agents, need, (), self._resources.is_asked)

    def _start_workers(self, number: int, hellos: Mapping[int, Message]) -> bool:
        """Returns whether the workers could be started."""
        try:
            setup = self._resources.nodes.generation_setup(
                number, hellos, self._resources.store, is_memory_here=False
            )
        except ValueError as error:  # too few GPUs of this machine, for spares that are simulated
            self._degrade(number, str(error))
            return False
        starts = {n: replace(start, is_health_check=True) for n, start in setup.starts.items()}
        self._agents.start_generation(starts)
        return True

    def _wait(self, timeout_s: float) -> None:
        """Waits for all workers, and ends them if one fails, the time is over or the job is asked
        to end."""
        agents, until_s = self._agents, time.monotonic() + timeout_s
        while agents.is_running():
            agents.read_messages()
            is_over = time.monotonic() > until_s or self._resources.is_asked()
            if is_over or agents.lost() or agents.replaced() or agents.has_failed():
                agents.end_generation(REPORT_MARGIN_S)
            time.sleep(_TICK_S)

    def _report(self, number: int) -> tuple[DeepHealthReport | None, str | None]:
        """Returns what was measured, and why it is not all."""
        failed = [one for one in self._agents.reports() if one.exit is not NodeExit.DONE]
        errors = [f"{self._host(one.node)}: {one.error}" for one in failed if one.error]
        lost = [f"{self._host(node)} was lost" for node in self._agents.lost()]
        try:
            text = self._run.deep_health(number).read_bytes()
            report = HEALTH_REPORT.validate_json(text)
        except (OSError, ValueError) as error:
            why = "; ".join([*lost, *errors]) or f"there is no report ({error})"
            return None, why
        if report.is_complete:
            return report, None
        why = "; ".join([*lost, *errors]) or "it did not end within health.deep.timeout_s"
        return report, why

    def _tell(
        self,
        number: int,
        deep: DeepHealthSpec,
        nodes: Sequence[int],
        found: Sequence[HealthProblem],
    ) -> None:
        """Emits an event for each problem, and leaves out the nodes that have one."""
        for one in found:
            node, text = nodes[one.node], self._text(nodes, one)
            is_excluded = one.excludes(deep)
            log.error("deep health check: %s%s", text, "" if is_excluded else " (not left out)")
            self._events.emit(
                DeepHealthProblemFound(
                    generation=number,
                    node=node,
                    rank=one.rank,
                    host=self._host(node),
                    peer=None if one.peer is None else self._host(nodes[one.peer]),
                    device=one.device,
                    measure=one.measure,
                    value=one.value,
                    median=one.median,
                    is_excluded=is_excluded,
                    what=one.text,
                )
            )
            if is_excluded:
                self._agents.leave_out(node, [one.text])
        self._resources.problems.report_unhealthy(number, self._agents.unhealthy())

    def _text(self, nodes: Sequence[int], one: HealthProblem) -> str:
        return f"{self._host(nodes[one.node])}: {one.text}"

    def _degrade(self, number: int, why: str) -> None:
        what = f"the nodes were not measured completely (health.deep): {why}"
        log.error(what)
        subject = DegradedSubject.HEALTH_CHECK
        self._events.emit(Degraded(subject=subject, generation=number, what=what))

    def _host(self, node: int) -> str:
        """Returns the name of a node: Slurm's, or its number of a simulated one."""
        job = self._supervised.job
        return f"node {node}" if job is None else job.hosts[node]
