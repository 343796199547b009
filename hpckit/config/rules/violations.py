"""Rules that span several keys of a spec, as pure functions that list what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator

from checkpointing import meant_url
from hpckit.config.entry_points import is_built_in
from hpckit.config.mixture import dataset_violations
from hpckit.config.rules.checkpoint import checkpoint_violations
from hpckit.config.rules.cluster import site_violations
from hpckit.config.rules.command import command_violations
from hpckit.config.rules.debug import debug_violations, drill_violations
from hpckit.config.rules.experts import expert_violations
from hpckit.config.rules.fine_tuning import tuning_violations
from hpckit.config.rules.metrics_and_alerts import alert_violations, metrics_violations
from hpckit.config.rules.model import model_violations
from hpckit.config.rules.optim import optim_violations
from hpckit.config.rules.precision_and_memory import precision_memory_violations
from hpckit.config.rules.ramps import ramp_violations
from hpckit.config.rules.secrets import secret_violations
from hpckit.config.rules.token_files import token_file_violations
from hpckit.config.rules.validation_and_evaluation import (
    evaluation_violations,
    validation_violations,
)
from hpckit.config.rules.world_size import degree_violations, world_size_violations
from hpckit.config.shard_places import shard_places
from hpckit.config.spec import RunSpec

FEWEST_RANKS = 3
"""Number of ranks that can be compared: of two that differ, either may be the slow one."""


def violations(spec: RunSpec) -> list[str]:
    """Returns all problems of `spec`, one line each, the key first; empty if it can be run.

    A rule about keys that the run does not use does not apply (`hpckit.config.entry_points`): the
    keys of models, data and steps do not matter to a program.
    """
    is_ours = is_built_in(spec)
    found = [*_addresses(spec), *_cluster(spec), *_elastic(spec), *command_violations(spec)]
    found += [*alert_violations(spec), *evaluation_violations(spec)]
    if spec.command is not None:
        return [
            *found,
            *checkpoint_violations(spec),
            *drill_violations(spec),
            *secret_violations(spec),
        ]
    if is_ours:
        found += [*model_violations(spec), *expert_violations(spec), *token_file_violations(spec)]
        found += precision_memory_violations(spec)
    found += [*dataset_violations(spec), *_cache(spec), *ramp_violations(spec)]
    found += _worlds(spec)
    if is_ours:
        found += optim_violations(spec)
    found += checkpoint_violations(spec)
    found += [*tuning_violations(spec), *validation_violations(spec)]
    found += [*metrics_violations(spec), *debug_violations(spec)]
    return [*found, *secret_violations(spec)]


def _cache(spec: RunSpec) -> Iterator[str]:
    data = spec.data
    if data.cache_peers and (data.cache is None or data.cache_gb == 0):
        yield (
            "data.cache_peers: nodes share their caches, and there is none; give data.cache, a "
            "folder on each node's own disk, and data.cache_gb above 0"
        )


def nodes_of_generation(spec: RunSpec, ordinal: int) -> int:
    """Returns the number of nodes of the `ordinal`-th generation (from 0) of a submission, which a
    drill may set."""
    plan = spec.debug.drill.nodes
    return plan[min(ordinal, len(plan) - 1)] if plan else spec.launch.nodes


def planned_nodes(spec: RunSpec) -> set[int]:
    """Returns every number of nodes that a generation has if none is lost."""
    return {spec.launch.nodes, *spec.debug.drill.nodes}


def fewest_nodes(spec: RunSpec) -> int:
    """Returns the least number of nodes with which the run continues."""
    return spec.elastic.min_nodes or spec.launch.nodes


def most_nodes(spec: RunSpec) -> int:
    """Returns the number of nodes of a job, with spares."""
    return max(planned_nodes(spec)) + spec.elastic.spares


def is_elastic(spec: RunSpec) -> bool:
    """Returns whether a job survives the loss of a node."""
    return spec.elastic.spares > 0 or fewest_nodes(spec) < spec.launch.nodes


def fits(spec: RunSpec, nodes: int) -> bool:
    """Returns whether this number of nodes can divide the model and a global batch evenly. A
    program has to work with any number."""
    return spec.command is not None or not list(world_size_violations(spec, nodes))


def _addresses(spec: RunSpec) -> Iterator[str]:
    """Yields paths that look like mistyped URLs. They would be resolved below the working
    directory."""
    given = {
        "root": spec.root,
        **shard_places(spec.data),
        "checkpoint.url": spec.checkpoint.url,
        "init_from.path": spec.init_from and spec.init_from.path,
    }
    for key, text in given.items():
        if text and (meant := meant_url(text)):
            yield f"{key}: {text} is neither a path nor a URL; did you mean {meant}?"


def _cluster(spec: RunSpec) -> Iterator[str]:
    cluster, slurm = spec.cluster, spec.cluster.slurm
    if (cluster.kind == "slurm") != (slurm is not None):
        what = "is required" if slurm is None else "must be null"
        yield f"cluster.slurm: {what} when cluster.kind={cluster.kind}"
    if (cluster.kind == "slurm") != (cluster.address is None):
        what = "is required" if cluster.address is None else "must be null"
        yield f"cluster.address: {what} when cluster.kind={cluster.kind}"
    if slurm is not None:
        yield from site_violations(slurm)


def _elastic(spec: RunSpec) -> Iterator[str]:
    if fewest_nodes(spec) > spec.launch.nodes:
        yield (
            f"elastic.min_nodes: {spec.elastic.min_nodes} is more than "
            f"launch.nodes={spec.launch.nodes}"
        )
    if (how := spec.elastic.evict_stragglers) is None:
        return
    key = f"elastic.evict_stragglers={how}"
    if how == "spare" and not spec.elastic.spares:
        yield f"{key}: there is no spare node; set elastic.spares, or elastic=spares"
    if how == "job" and spec.cluster.kind != "slurm":
        yield f"{key}: only on Slurm another job may get other nodes; set cluster=slurm, or spare"
    if spec.command is not None:
        yield f"{key}: steps of a program are not traced, so that no slow node is found"
    if spec.train.trace_share == 0:
        yield f"{key}: slow nodes are found in traced steps; set train.trace_share"
    if (ranks := spec.launch.nodes * spec.launch.nproc_per_node) < FEWEST_RANKS:
        yield f"{key}: ranks are compared, for which there have to be {FEWEST_RANKS}; got {ranks}"


def _worlds(spec: RunSpec) -> Iterator[str]:
    """Yields the violations for every planned number of nodes, without duplicates."""
    if bad := list(degree_violations(spec.parallel)):
        yield from bad
        return
    nodes = sorted(planned_nodes(spec) | {fewest_nodes(spec)})
    yield from dict.fromkeys(
        found for count in nodes for found in world_size_violations(spec, count)
    )
