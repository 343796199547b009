"""Rules that span several keys of a spec. Pure: a spec in, a list of what is wrong with it out."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.run.degrees import degrees
from hpckit.run.sitecheck import site_violations
from hpckit.run.spec import RunSpec


def violations(spec: RunSpec) -> list[str]:
    """Everything about `spec` that cannot work, one line each, the key first; empty if it can."""
    found = [*_cluster(spec), *_elastic(spec), *_model(spec), *_parallel(spec), *_batch(spec)]
    return [*found, *_optim(spec), *_checkpoint(spec), *_drill(spec)]


def nodes_of_generation(spec: RunSpec, ordinal: int) -> int:
    """Nodes of the `ordinal`-th generation (from 0) of a submission, as a drill may say."""
    plan = spec.debug.drill.nodes
    return plan[min(ordinal, len(plan) - 1)] if plan else spec.launch.nodes


def planned_nodes(spec: RunSpec) -> set[int]:
    """Every number of nodes that a generation has if none is lost."""
    return {spec.launch.nodes, *spec.debug.drill.nodes}


def fewest_nodes(spec: RunSpec) -> int:
    """That the run goes on with."""
    return spec.elastic.min_nodes or spec.launch.nodes


def most_nodes(spec: RunSpec) -> int:
    """That a job has, those that stand by among them."""
    return max(planned_nodes(spec)) + spec.elastic.spares


def is_elastic(spec: RunSpec) -> bool:
    """Whether a job outlives the loss of a node."""
    return spec.elastic.spares > 0 or fewest_nodes(spec) < spec.launch.nodes


def fits(spec: RunSpec, nodes: int) -> bool:
    """Whether so many nodes can share the model and a global batch evenly."""
    return _misfit(spec, nodes) is None and _uneven(spec, nodes) is None


def _cluster(spec: RunSpec) -> Iterator[str]:
    cluster, slurm = spec.cluster, spec.cluster.slurm
    if (cluster.kind == "slurm") != (slurm is not None):
        what = "has no value" if slurm is None else "must be null"
        yield f"cluster.slurm: {what} where cluster.kind={cluster.kind}"
    if (cluster.kind == "slurm") != (cluster.address is None):
        what = "has no value" if cluster.address is None else "must be null"
        yield f"cluster.address: {what} where cluster.kind={cluster.kind}"
    if slurm is not None:
        yield from site_violations(slurm)


def _elastic(spec: RunSpec) -> Iterator[str]:
    if fewest_nodes(spec) > spec.launch.nodes:
        yield (
            f"elastic.min_nodes: {spec.elastic.min_nodes} is more than "
            f"launch.nodes={spec.launch.nodes}"
        )


def _model(spec: RunSpec) -> Iterator[str]:
    model = spec.model
    if model.width % model.heads:
        yield f"model.heads: {model.heads} heads do not divide model.width={model.width}"


def _parallel(spec: RunSpec) -> Iterator[str]:
    for key, degree in (("replicate", spec.parallel.replicate), ("shard", spec.parallel.shard)):
        if degree == 0:
            yield f"parallel.{key}: must be 1 or more, or -1 for the rest; got 0"
            return
    for nodes in sorted(planned_nodes(spec) | {fewest_nodes(spec)}):
        problem = _misfit(spec, nodes)
        if problem is not None:
            yield problem


def _misfit(spec: RunSpec, nodes: int) -> str | None:
    workers = spec.launch.gpus_per_node
    try:
        degrees(spec.parallel, nodes * workers)
    except ValueError as error:
        return f"parallel: {error} ({nodes} nodes x {workers} workers)"
    return None


def _batch(spec: RunSpec) -> Iterator[str]:
    """Each world size that is planned must split the global batch evenly.

    What a rank takes is cut into micro-batches of equal size, so the loss is the same mean on any
    world.
    """
    for nodes in sorted(planned_nodes(spec) | {fewest_nodes(spec)}):
        problem = _uneven(spec, nodes)
        if problem is not None:
            yield problem


def _uneven(spec: RunSpec, nodes: int) -> str | None:
    if spec.elastic.scale_lr is not None:
        nodes = spec.launch.nodes  # whose ranks' share stays
    train, per_node = spec.train, spec.launch.gpus_per_node
    world = nodes * per_node
    what = f"{nodes} nodes x {per_node} workers = {world} ranks"
    if train.global_batch % world:
        return (
            f"train.global_batch: {train.global_batch} samples do not divide over {what}; "
            f"try {_multiples_near(train.global_batch, world)}"
        )
    share = train.global_batch // world
    if share % min(train.micro_batch, share):
        return (
            f"train.micro_batch: {train.micro_batch} does not divide the {share} samples of a "
            f"rank ({train.global_batch} over {what}); try a divisor of {share}"
        )
    return None


def _multiples_near(value: int, unit: int) -> str:
    below = value - value % unit
    return f"{below} or {below + unit}" if below else f"{unit}"


def _optim(spec: RunSpec) -> Iterator[str]:
    if spec.optim.warmup_steps >= spec.train.steps:
        yield (
            f"optim.warmup_steps: {spec.optim.warmup_steps} leaves none of "
            f"train.steps={spec.train.steps} for training at full rate"
        )


def _checkpoint(spec: RunSpec) -> Iterator[str]:
    ckpt = spec.checkpoint
    given = {
        "every_steps": ckpt.every_steps,
        "every_minutes": ckpt.every_minutes,
        "mtbf_hours": ckpt.mtbf_hours,
    }
    names = [f"checkpoint.{name}" for name, value in given.items() if value is not None]
    if len(names) > 1:
        yield f"{names[-1]}: give one of {', '.join(names)}, the others null"


def _drill(spec: RunSpec) -> Iterator[str]:
    drill = spec.debug.drill
    if list(drill.preempt_at) != sorted(set(drill.preempt_at)):
        yield f"debug.drill.preempt_at: {list(drill.preempt_at)} must increase"
    if drill.preempt_at and drill.preempt_at[-1] >= spec.train.steps:
        yield (
            f"debug.drill.preempt_at: step {drill.preempt_at[-1]} is not before "
            f"train.steps={spec.train.steps}"
        )
    if spec.cluster.kind == "slurm" and max(drill.nodes, default=0) > spec.launch.nodes:
        yield f"debug.drill.nodes: a job has launch.nodes={spec.launch.nodes}, and never more"
