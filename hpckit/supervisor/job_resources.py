"""The resources that the generations of a job share: its nodes, their agents, the rendezvous store
and the records of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hpckit.agent.device_assignment import visible_gpus
from hpckit.agent.rendezvous_store import RendezvousStore
from hpckit.events.event_log import Event
from hpckit.events.schema import StraysKilled
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.submit.newest_checkpoint import SavedStep
from hpckit.supervisor.agents.agent_launch import JobNodes, LocalNodes, SlurmNodes
from hpckit.supervisor.agents.agent_pool import AgentPool
from hpckit.supervisor.continuation.job_chain import JobChain
from hpckit.supervisor.failure_context import failure_context
from hpckit.supervisor.generation_record import GenerationRecorder
from hpckit.supervisor.node_selection.node_problem_events import NodeProblemReporter
from hpckit.supervisor.node_selection.suspect_reports import SuspectReporter
from hpckit.supervisor.preemption_drill import PreemptionDrill
from hpckit.supervisor.signal_requests import SupervisorRequests
from hpckit.supervisor.supervised_run import SupervisedRun
from hpckit.supervisor.termination_cause import TerminationCause
from hpckit.system.child_processes import kill_strays
from hpckit.system.open_files import allow_open_files

_FILES, _FILES_PER_NODE = 256, 3
"""Files that a supervisor has open: its own, and for each node two pipes and a connection to the
rendezvous store."""


@dataclass(frozen=True)
class JobControls:
    """The objects that a supervisor has before it opens the resources of its job."""

    requests: SupervisorRequests
    cause: TerminationCause
    recorder: GenerationRecorder


@dataclass(frozen=True)
class JobResources:
    """The resources of a job, which one generation after the other uses."""

    supervised: SupervisedRun
    controls: JobControls
    nodes: JobNodes
    store: RendezvousStore
    agents: AgentPool
    saved_step: SavedStep
    problems: NodeProblemReporter
    drill: PreemptionDrill
    chain: JobChain | None
    """The queue entry of the successor job, if there is to be one."""

    def read_requests(self) -> WorkerRequest:
        """Returns the current request, with signals that agents received, without waiting."""
        return self.controls.requests.update(self.agents.signals())

    def is_asked(self) -> bool:
        """Returns whether the generation is to end or not to start."""
        return self.read_requests() is not WorkerRequest.NONE


@contextmanager
def open_resources(
    supervised: SupervisedRun,
    controls: JobControls,
    chain: JobChain | None,
    written: Sequence[Event],
    gpus: tuple[str, ...] | None,
) -> Iterator[JobResources]:
    """Opens the resources of a job for the duration of the block. At its end, agents on nodes of
    their own get time to write what they hold.

    Args:
        written: the run's events so far.
        gpus: the GPUs of this machine to use. None: all that are visible. A Slurm job ignores them.
    """
    run, events = supervised.run, supervised.events
    with failure_context("make folders of the run's containers"):
        nodes = _job_nodes(supervised, gpus)
    with failure_context("open pipes and a connection for each node"):
        allow_open_files(
            _FILES + _FILES_PER_NODE * nodes.count, f"the supervisor of {nodes.count} nodes"
        )
    with failure_context("end the processes that an earlier supervisor left on this node"):
        if killed := kill_strays(run.path):
            events.emit(StraysKilled(pids=killed))
    drain_s = None if supervised.job is None else supervised.report_limit_s
    with (
        RendezvousStore(nodes.address) as store,
        AgentPool(nodes.start_agent, events, drain_s, supervised.spec.health) as agents,
        SuspectReporter(supervised) as suspects,
    ):
        # they import their modules while the store is read
        with failure_context("start the agents"):
            first = max(run.generation_numbers(), default=0) + 1
            agents.start_agents(range(nodes.count), first)
        saved_step = SavedStep(supervised.spec, run, events, written)
        yield JobResources(
            supervised,
            controls,
            nodes,
            store,
            agents,
            saved_step,
            NodeProblemReporter(supervised.job, events, suspects),
            PreemptionDrill(supervised.spec.debug.drill.preempt_at, saved_step.step),
            chain,
        )


def _job_nodes(supervised: SupervisedRun, gpus: tuple[str, ...] | None) -> JobNodes:
    """Returns the nodes of the Slurm job, or simulated nodes of this machine."""
    spec, run, submission = supervised.spec, supervised.run, supervised.submission
    if supervised.job is not None:
        return SlurmNodes(spec, run, submission, supervised.job)
    return LocalNodes(spec, run, submission, visible_gpus(os.environ) if gpus is None else gpus)
