"""The history of a run's generations, which determines what the next generation needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from hpckit.agent.verdict_record import LEAVES
from hpckit.config.rules.violations import fewest_nodes, fits, nodes_of_generation
from hpckit.config.spec import RunSpec
from hpckit.events.schema import Event
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.supervisor.node_selection.node_choice import NodeRequirement
from hpckit.supervisor.node_selection.node_shortage import NodeShortage, is_job_spent, shortage_of
from hpckit.supervisor.node_selection.snapshot_holders import SnapshotHolders
from hpckit.supervisor.node_selection.straggler_eviction import EvictionHistory
from hpckit.supervisor.verdict import PastGeneration


class GenerationHistory:
    """The generations since a person started the run, and what is left of those of this job."""

    def __init__(self, past: Sequence[PastGeneration], written: Iterable[Event] = ()) -> None:
        """
        Args:
            past: the generations of earlier jobs, oldest first.
            written: the run's events so far.
        """
        self.past = list(past)
        self._count_of_earlier_jobs = len(past)
        self.snapshot_holders = SnapshotHolders()
        self.nodes: tuple[int, ...] = ()
        """Nodes of the previous generation of this job."""
        self.is_unusable_fork_reported = False
        self.evictions = EvictionHistory(written)
        self.is_evicted_by_next_job = False
        """Whether the next job replaces slow nodes of the last generation."""
        # of the last successive generations, which could not start
        self._shortages: list[NodeShortage] = []

    def required_nodes(self, spec: RunSpec) -> NodeRequirement:
        """Returns the number of nodes that the next generation needs."""
        wanted = nodes_of_generation(spec, len(self.past) - self._count_of_earlier_jobs)
        return NodeRequirement(wanted, min(wanted, fewest_nodes(spec)), partial(fits, spec))

    def add_start(self, nodes: Iterable[int]) -> None:
        """Records that a generation has started on these nodes."""
        self.nodes = tuple(nodes)
        self._shortages.clear()

    def add_shortage(self, unhealthy: Sequence[str]) -> None:
        """Records that a generation could not start, because these nodes are unhealthy or because
        nodes are gone."""
        self._shortages.append(shortage_of(self.nodes, unhealthy))

    @property
    def is_retry_worthwhile(self) -> bool:
        """Whether the last generation could not start, but another one in the same job may."""
        return bool(self._shortages) and not is_job_spent(self._shortages)

    def has_to_leave(self, asked: WorkerRequest) -> bool:
        """Returns whether the next generation of a Slurm job belongs to another job, because Slurm
        wants the nodes back or too few are left."""
        is_asked = self.past[-1].kind in LEAVES or asked is WorkerRequest.PREEMPT
        return is_asked or self.is_evicted_by_next_job or is_job_spent(self._shortages)
