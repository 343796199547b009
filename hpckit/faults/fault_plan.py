"""Plans a drill in a run that is under way: which fault hits which target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from checkpointing import local_folder
from data.source.address import Address
from hpckit.config.shard_places import training_places
from hpckit.events.event_log import Event, read_events
from hpckit.events.schema import NodesChosen, WorkerStarted
from hpckit.events.skipped_updates import skipped_updates
from hpckit.faults.checkpoint_damage import MANIFESTS, PACKS, newest
from hpckit.faults.injection.failing_syscalls import CALLS
from hpckit.faults.injection.process_faults import FULL_S, STOPPED_S, Slowdown
from hpckit.report.overview import Overview
from hpckit.report.run_state import RunState
from hpckit.rundir.directory import checkpoint_root
from hpckit.trainer.spikes.rollback_plan import is_one_too_many, rollbacks
from hpckit.trainer.spikes.spike_detection import LEAST

_SAVES_FAIL = "training continues; saves fail, and succeed when it can write again"
_TO_WORKER = {
    "nan": "a NaN among the parameters of",
    "memory": "no memory for",
    "worker_term": "SIGTERM of",
}


class DrillError(RuntimeError):
    """The fault cannot be injected; the message says why."""


class ImpossibleDrillError(DrillError):
    """The fault cannot be injected into this run at any time."""


class DrillKind(StrEnum):
    """The kinds of drills."""

    PREEMPT = "preempt"
    TIMEOUT = "timeout"
    WORKER = "worker"
    AGENT = "agent"
    NODE = "node"
    HANG = "hang"
    SLOW = "slow"
    SERVICE = "service"
    SUPERVISOR = "supervisor"
    FULL = "full"
    ENOSPC = "enospc"
    EIO = "eio"
    NAN = "nan"
    MEMORY = "memory"
    STALL = "stall"
    WRONG = "wrong"
    SPIKE = "spike"
    DAMAGE = "damage"
    MANIFEST = "manifest"
    CACHE = "cache"
    WORKER_TERM = "worker_term"
    AGENT_TERM = "agent_term"
    AGENT_STOP = "agent_stop"
    SERVICE_TERM = "service_term"
    SERVICE_STOP = "service_stop"
    SUPERVISOR_STOP = "supervisor_stop"
    REQUEUE = "requeue"


OF_SERVICE = (
    *(DrillKind.SERVICE, DrillKind.SERVICE_TERM, DrillKind.SERVICE_STOP),
    *(DrillKind.FULL, DrillKind.ENOSPC, DrillKind.EIO),
)
"""Faults of the checkpoint service of a node; its ranks are not disturbed."""
OF_WORKLOAD = (
    *(DrillKind.NAN, DrillKind.MEMORY, DrillKind.STALL, DrillKind.WRONG, DrillKind.SPIKE),
    *(DrillKind.DAMAGE, DrillKind.MANIFEST),
)
"""Faults for runs of `WORKLOAD` only: its workers inject them into themselves, or they damage what
a run cannot repair."""
WORKLOAD = "hpckit.drill.workload:main"


@dataclass(frozen=True)
class FaultPlan:
    """A planned fault and its expected effect."""

    kind: DrillKind
    what: str
    expect: str
    number: int = 0
    """Number of the rank or the node."""
    node: int = 0
    """Number of the node of the target."""
    path: Path | None = None
    """Path of the object that is damaged."""
    cache: Path | None = None
    """Cache on that node in which a shard is damaged; `number` selects the shard."""
    slowdown: Slowdown | None = None
    """How much the rank is slowed down; None: by the usual amount, or not at all."""


def plan_drill(
    it: Overview,
    kind: DrillKind,
    rank: int | None,
    node: int | None,
    slowdown: Slowdown | None = None,
) -> FaultPlan:
    """Plan a drill of this kind for the run. If no rank or node is given, they are counted from the
    end.

    Args:
        slowdown: of `DrillKind.SLOW`; None: the usual one.

    Raises:
        DrillError: it cannot be injected into this run now.
    """
    if it.state is not RunState.RUNNING:
        raise DrillError(f"{it.run.name} {it.condition}: a drill requires a run that is training")
    if it.spec is None:
        raise DrillError(f"{it.run.name}: {it.problem}")
    if kind in OF_WORKLOAD and it.spec.entry != WORKLOAD:
        raise ImpossibleDrillError(
            f"{kind}: this requires a run of a campaign, with entry={WORKLOAD}"
        )
    match kind:
        case DrillKind.PREEMPT | DrillKind.TIMEOUT:
            return _plan_request(it, kind)
        case DrillKind.NODE | DrillKind.AGENT | DrillKind.AGENT_STOP:
            return _plan_loss(it, kind, _chosen("node", node, training_nodes(it)))
        case DrillKind.AGENT_TERM:
            return _plan_leave(it, _chosen("node", node, training_nodes(it)))
        case kind if kind in OF_SERVICE:
            return _plan_service(kind, _chosen("node", node, training_nodes(it)))
        case DrillKind.DAMAGE | DrillKind.MANIFEST:
            return _plan_damage(it, kind, rank or 0)
        case DrillKind.CACHE:
            return _plan_cache(it, rank or 0, _chosen("node", node, training_nodes(it)))
        case DrillKind.SUPERVISOR:
            return _plan_supervisor(it)
        case DrillKind.SUPERVISOR_STOP:
            expect = "its agents assume that it is dead and leave; it continues with new agents"
            return FaultPlan(kind, f"SIGSTOP of the supervisor for {STOPPED_S:g} s", expect)
        case DrillKind.REQUEUE:
            return _plan_requeue(it)
    chosen = _chosen("rank", rank, range(it.progress.ranks))
    where = _node_of(it, chosen)
    if kind is DrillKind.SLOW:
        return _plan_slow(chosen, where, slowdown)
    _require_retry("retry.max_restarts", it.spec.retry.max_restarts)
    if kind in (DrillKind.HANG, DrillKind.STALL):
        return _plan_hang(it, kind, chosen, where)
    if kind is DrillKind.WRONG:
        return _plan_wrong(it, chosen, where)
    if kind is DrillKind.SPIKE:
        return _plan_spike(it, chosen, where)
    what = f"{_TO_WORKER.get(kind, 'SIGKILL of')} the worker of rank {chosen}, on node {where}"
    expect = "all workers are restarted within the generation"
    return FaultPlan(kind, what, f"{expect}, from step {it.progress.saved_step:,}", chosen, where)


def _plan_slow(rank: int, node: int, slowdown: Slowdown | None) -> FaultPlan:
    how = f"runs for a tenth of the time during {Slowdown().seconds:g} s"
    if slowdown is not None:
        how = f"computes {slowdown.percent:g} % longer during {slowdown.seconds:g} s"
    what, expect = f"rank {rank}, on node {node}, {how}", "steps take longer, nothing is restarted"
    return FaultPlan(DrillKind.SLOW, what, expect, rank, node, slowdown=slowdown)


def _plan_loss(it: Overview, kind: DrillKind, node: int) -> FaultPlan:
    assert it.spec is not None
    _require_retry("retry.infra", it.spec.retry.infra)
    rest = " and all its processes" if kind is DrillKind.NODE else ""
    signal = "SIGSTOP" if kind is DrillKind.AGENT_STOP else "SIGKILL"
    what = f"{signal} of the agent of node {node}{rest}"
    expect = "the generation ends with the verdict infra; the next one begins with a new agent"
    return FaultPlan(kind, what, f"{expect}, from step {it.progress.saved_step:,}", node, node)


def _plan_leave(it: Overview, node: int) -> FaultPlan:
    what = f"SIGTERM of the agent of node {node}, as Slurm sends to a step"
    expect = "every rank saves and leaves; the next generation continues, and nothing is lost"
    if it.is_slurm:  # the supervisor takes it for a preemption by Slurm
        expect = f"every rank saves and leaves; job {_successor(it)} continues, and nothing is lost"
    return FaultPlan(DrillKind.AGENT_TERM, what, expect, node, node)


def _plan_service(kind: DrillKind, node: int) -> FaultPlan:
    service = f"the checkpoint service of node {node}"
    expect = "training continues; the ranks save themselves, or through a new service"
    match kind:
        case DrillKind.FULL:
            what = f"{service} can write to no file for {FULL_S:g} s"
            expect = _SAVES_FAIL
        case DrillKind.ENOSPC | DrillKind.EIO:
            calls = ", ".join(CALLS[kind.name])
            what = f"{kind.name} for {FULL_S:g} s from {calls} of {service}"
            expect = _SAVES_FAIL
        case DrillKind.SERVICE_STOP:
            what = f"SIGSTOP of {service} for {STOPPED_S:g} s"
            expect = "saves wait, and training waits for them when no slot is free"
        case _:
            what = f"{'SIGTERM' if kind is DrillKind.SERVICE_TERM else 'SIGKILL'} of {service}"
    return FaultPlan(kind, what, expect, node, node)


def _plan_damage(it: Overview, kind: DrillKind, number: int) -> FaultPlan:
    assert it.spec is not None
    root = checkpoint_root(it.spec, it.run)
    if (folder := local_folder(root)) is None:
        raise ImpossibleDrillError(f"{kind}: {root} is not a folder")
    path = newest(folder, PACKS if kind is DrillKind.DAMAGE else MANIFESTS, number)
    if path is None:
        raise DrillError(f"{kind}: {root} has no file of a checkpoint")
    expect = "the next reader detects it and uses another checkpoint"
    return FaultPlan(kind, f"a bit of {path.name} is flipped", expect, path=path)


def _plan_cache(it: Overview, number: int, node: int) -> FaultPlan:
    assert it.spec is not None
    data = it.spec.data
    cache = Path(data.cache or "")
    is_read_in_place = not data.cache_local and all(
        Address.parse(shards).local is not None for shards in training_places(data).values()
    )
    if is_read_in_place or not cache.is_absolute():
        raise ImpossibleDrillError(
            "cache: the run has no cache: data.cache names no absolute path, or its shards are "
            "files"
            " and data.cache_local=false"
        )
    what = f"a bit of each sample of a shard in {cache} of node {node} is flipped"
    expect = "the next reader detects it, moves it to quarantine and fetches it again"
    return FaultPlan(DrillKind.CACHE, what, expect, number, node, cache=cache)


def _plan_requeue(it: Overview) -> FaultPlan:
    if not it.is_slurm:
        raise ImpossibleDrillError("requeue: a run on this machine is not in a queue")
    assert it.spec is not None
    if not it.spec.launch.is_requeued:
        how = it.spec.launch.continuation
        raise ImpossibleDrillError(
            f"requeue: with launch.continuation={how}, Slurm may not requeue its jobs"
        )
    job = it.progress.job
    expect = f"every rank saves and leaves; job {job} continues when Slurm starts it again"
    return FaultPlan(DrillKind.REQUEUE, f"scontrol requeue of job {job}", expect)


def _plan_supervisor(it: Overview) -> FaultPlan:
    what = "SIGKILL of the supervisor"
    if not it.is_slurm:
        return FaultPlan(
            DrillKind.SUPERVISOR, what, "the whole run ends; `hpckit resume` continues it"
        )
    successor = _successor(it)
    expect = f"job {it.progress.job} ends, and job {successor} continues"
    return FaultPlan(DrillKind.SUPERVISOR, what, f"{expect} from step {it.progress.saved_step:,}")


def _plan_hang(it: Overview, kind: DrillKind, rank: int, node: int) -> FaultPlan:
    assert it.spec is not None
    limit_s = it.spec.hang.step_s
    if limit_s is None:
        raise DrillError("hang.step_s is null: nothing would detect a rank that hangs")
    what = f"SIGSTOP of the worker of rank {rank}, on node {node}"
    if kind is DrillKind.STALL:
        what = f"the worker of rank {rank}, on node {node}, waits forever between two steps"
    expect = f"in {limit_s:g} s all stacks are written to files, and all workers are restarted"
    return FaultPlan(kind, what, expect, rank, node)


def _plan_wrong(it: Overview, rank: int, node: int) -> FaultPlan:
    assert it.spec is not None
    if it.spec.checkpoint.certify is None:
        raise ImpossibleDrillError(
            "wrong: checkpoint.certify is null: nothing would detect a rank that computes wrongly"
        )
    if it.progress.ranks < 2:
        raise DrillError("wrong: there is no other rank to compare with")
    what = f"rank {rank}, on node {node}, computes wrongly from now on"
    expect = "the next check names it; the run goes back to a checkpoint from before"
    return FaultPlan(DrillKind.WRONG, what, expect, rank, node)


def _plan_spike(it: Overview, rank: int, node: int) -> FaultPlan:
    assert it.spec is not None
    heal, step = it.spec.heal, it.progress.step or 0
    if heal.on_spike is None:
        raise ImpossibleDrillError("spike: heal=off: nothing would detect it")
    if step < 2 * LEAST:
        raise DrillError(f"spike: at step {step} there are too few steps to compare with")
    events = read_events(it.run.events)
    if heal.on_spike == "rollback":
        is_last = is_one_too_many(rollbacks(events), step, heal.most, heal.within)
        expect = "the run goes back, and continues without the samples of that step"
    else:
        is_last = sum(step - heal.within < one for one in skipped_updates(events)) >= heal.most
        expect = "the optimizer does not make that step"
    if is_last:
        raise ImpossibleDrillError(
            f"spike: there were heal.most={heal.most} within heal.within={heal.within} steps "
            "already: the run would end"
        )
    what = f"the loss of the next samples of rank {rank}, on node {node}, is very large"
    return FaultPlan(DrillKind.SPIKE, what, expect, rank, node)


def _plan_request(it: Overview, kind: DrillKind) -> FaultPlan:
    assert it.spec is not None
    follows = "every rank saves and leaves; the next generation continues, and nothing is lost"
    if not it.is_slurm:
        name = "SIGTERM" if kind is DrillKind.PREEMPT else "SIGUSR2"
        return FaultPlan(kind, f"{name} to the supervisor, as Slurm would send it", follows)
    job, successor = it.progress.job, _successor(it)
    expect = f"every rank saves and leaves, job {job} ends, and job {successor} continues"
    if kind is DrillKind.PREEMPT:
        what = f"SIGTERM to the steps of job {job}, as Slurm does to preempt a job"
    else:
        what = f"the time limit of job {job} moved to now, and SIGUSR2, as Slurm sends before it"
    return FaultPlan(kind, what, f"{expect}, nothing is lost")


def _successor(it: Overview) -> str:
    job, successor = it.progress.job, it.progress.successor
    if successor is None:
        assert it.spec is not None
        how = it.spec.launch.continuation
        kind = DrillError if how == "chain" else ImpossibleDrillError
        raise kind(
            f"job {job} has no successor in the queue (launch.continuation={how}): the run would "
            "end"
        )
    return successor


def training_nodes(it: Overview) -> Sequence[int]:
    """Return the numbers of the nodes of this generation, among all nodes of the job."""
    return nodes_of(read_events(it.run.events), it.progress.generation, it.progress.nodes)


def nodes_of(events: Sequence[Event], generation: int, count: int) -> Sequence[int]:
    """Return the numbers of the nodes of a generation of `count` nodes; if the job has spares, an
    event says which."""
    chosen = (e for e in events if isinstance(e, NodesChosen) and e.generation == generation)
    found: list[int] | None = next((e.nodes for e in chosen), None)
    return range(count) if found is None else found


def _chosen(what: str, wanted: int | None, there: Sequence[int]) -> int:
    if wanted is None:
        return there[-1]
    if wanted not in there:
        known = ", ".join(map(str, there))
        raise DrillError(f"--{what}: {wanted} is not one of this generation: {known}")
    return wanted


def _require_retry(key: str, allowed: int) -> None:
    if not allowed:
        raise DrillError(f"{key}=0: the run would end and not recover")


def _node_of(it: Overview, rank: int) -> int:
    events = read_events(it.run.events)
    found = [e for e in events if isinstance(e, WorkerStarted) and _is_of(e, it, rank)]
    if not found:
        raise DrillError(f"--rank: {rank} does not exist in generation {it.progress.generation}")
    node = found[-1].node
    assert node is not None  # the workers add it
    return node


def _is_of(event: WorkerStarted, it: Overview, rank: int) -> bool:
    return (event.rank, event.generation) == (rank, it.progress.generation)
