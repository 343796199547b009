"""Rules for how a number of ranks divides a model and a global batch, as pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.config.batch_size import micro_batch_count, share_of_rank
from hpckit.config.entry_points import is_built_in, is_training_function
from hpckit.config.parallel_degrees import NAMES, ParallelDegrees, degrees, stage_count
from hpckit.config.rules.experts import expert_violations_of_world
from hpckit.config.rules.precision_and_memory import precision_memory_violations_of_world
from hpckit.config.rules.ramps import ramp_sizes, sequence_violations_of_world, uneven_sizes
from hpckit.config.spec import DecoderSpec, ImageSpec, LlamaSpec, ParallelSpec, RunSpec
from hpckit.text.quantities import count

DEFAULT_BATCH = 16
"""The value of `train.global_batch` in `conf/config.yaml`."""


def degree_violations(parallel: ParallelSpec) -> Iterator[str]:
    """Yields the violations that hold for every world."""
    for name in NAMES:
        if getattr(parallel, name) == 0:
            yield f"parallel.{name}: must be 1 or more, or -1 for all remaining ranks; got 0"


def world_size_violations(spec: RunSpec, nodes: int) -> Iterator[str]:
    """Yields the reasons why this number of nodes cannot divide the model or a global batch
    evenly, as far as the run uses them (`hpckit.config.entry_points`)."""
    if not is_training_function(spec):
        return
    workers = spec.launch.nproc_per_node
    try:
        found = degrees(spec.parallel, nodes * workers)
    except ValueError as error:
        yield (
            f"parallel: {error} ({_times(nodes, workers)}); change these degrees, "
            "launch.nodes or launch.nproc_per_node"
        )
        return
    if not is_built_in(spec):
        yield from _uneven_batch(spec, nodes) if _is_batch_used(spec) else ()
        return
    if isinstance(spec.model, ImageSpec):
        yield from _undivided(spec.model, found)
    else:
        yield from _layers(spec, spec.model, found)
    yield from precision_memory_violations_of_world(spec, found)
    yield from expert_violations_of_world(spec, found)
    yield from sequence_violations_of_world(spec, found)
    uneven = list(_uneven_batch(spec, nodes)) or list(_micro_batches(spec, nodes))
    yield from uneven or _pipeline(spec, found)


def _undivided(model: ImageSpec, found: ParallelDegrees) -> Iterator[str]:
    """Yields violations for image models, which support only data parallelism."""
    for name in ("tensor", "pipeline"):
        if (ranks := getattr(found, name)) > 1:
            yield (
                f"parallel.{name}: a {model.kind} cannot be divided over {ranks} ranks; use a "
                "data-parallel group, such as ddp or fsdp"
            )


def _layers(spec: RunSpec, model: DecoderSpec, found: ParallelDegrees) -> Iterator[str]:
    """Yields violations if a rank does not get whole heads, features and positions, or a stage
    gets no block."""
    ranks = found.tensor
    divided = {"heads": model.heads, "seq_len": model.seq_len}
    if isinstance(model, LlamaSpec):
        divided |= {"kv_heads": model.kv_heads, "hidden": model.hidden}
    for name, size in divided.items():
        if size % ranks:
            yield (
                f"parallel.tensor: {ranks} ranks do not divide model.{name}={size}; use a divisor"
            )
    stages = stage_count(spec.parallel, found.pipeline)
    if model.layers < stages:
        yield (
            f"parallel.pipeline: {found.pipeline} ranks make {stages} stages "
            f"({spec.parallel.schedule}), more than model.layers={model.layers}"
        )


def _is_batch_used(spec: RunSpec) -> bool:
    """Returns whether a training function of the user may depend on `train.global_batch`: it was
    given, or the learning rate is scaled with it. A loader of hpckit refuses a share that is not
    whole itself."""
    is_given = spec.train.global_batch != DEFAULT_BATCH or spec.train.batch_ramp is not None
    return is_given or spec.elastic.scale_lr is not None


def _nodes_of_batch(spec: RunSpec, nodes: int) -> int:
    """Returns the number of nodes that share the global batch: the learning rate is scaled where
    the share of a rank stays that of `launch.nodes`."""
    return nodes if spec.elastic.scale_lr is None else spec.launch.nodes


def _uneven_batch(spec: RunSpec, nodes: int) -> Iterator[str]:
    """Yields a violation if the ranks do not get the same number of samples."""
    nodes, train, per_node = _nodes_of_batch(spec, nodes), spec.train, spec.launch.nproc_per_node
    world = nodes * per_node
    found = degrees(spec.parallel, world)
    what = _parts(found, nodes, per_node)
    if train.global_batch % found.data:
        yield (
            f"train.global_batch: {train.global_batch} samples cannot be divided evenly over "
            f"{what}; "
            f"try {_multiples_near(train.global_batch, found.data)}"
        )
        return
    yield from uneven_sizes(spec, found.data)


def _micro_batches(spec: RunSpec, nodes: int) -> Iterator[str]:
    """Yields a violation if a rank's samples do not divide into micro-batches of equal size, which
    make the loss the same mean on any number of ranks."""
    nodes, train, per_node = _nodes_of_batch(spec, nodes), spec.train, spec.launch.nproc_per_node
    found = degrees(spec.parallel, nodes * per_node)
    what, launched = _parts(found, nodes, per_node), spec.launch.nodes * per_node
    for size in (train.global_batch, *ramp_sizes(spec, launched)):
        share = size // found.data
        if share % min(train.micro_batch, share):
            of_ramp = "" if size == train.global_batch else " of train.batch_ramp"
            yield (
                f"train.micro_batch: {train.micro_batch} does not divide the {share} samples of a "
                f"rank ({size}{of_ramp} over {what}); try a divisor of {share}"
            )
            return


def _times(nodes: int, workers: int) -> str:
    return f"{count(nodes, 'node')} x {count(workers, 'worker')}"


def _parts(found: ParallelDegrees, nodes: int, per_node: int) -> str:
    """Returns what shares a global batch, as text: the ranks, or the groups that share samples."""
    what = f"{_times(nodes, per_node)} = {count(nodes * per_node, 'rank')}"
    if found.model == 1:
        return what
    return f"{found.data} parts ({what}, {found.model} ranks share each part)"


def _pipeline(spec: RunSpec, found: ParallelDegrees) -> Iterator[str]:
    """Yields violations if there are too few micro-batches to keep the stages of the schedule
    busy."""
    ranks = found.pipeline
    for share in _shares(spec, ranks * found.data * found.tensor, found):
        problems = list(_pipeline_of(spec, found, share))
        yield from problems
        if problems:
            return


def _shares(spec: RunSpec, world: int, found: ParallelDegrees) -> list[int]:
    """Returns the samples of a rank, of all batch sizes."""
    return [share_of_rank(spec, world), *(size // found.data for size in ramp_sizes(spec, world))]


def _pipeline_of(spec: RunSpec, found: ParallelDegrees, share: int) -> Iterator[str]:
    ranks, schedule = found.pipeline, spec.parallel.schedule
    parts = micro_batch_count(share, spec.train.micro_batch)
    fewest = 1 if schedule == "gpipe" else ranks
    if ranks > 1 and parts < fewest:
        yield (
            f"train.micro_batch: {share} samples of a rank make {parts} micro-batches of "
            f"{spec.train.micro_batch}; a pipeline of {ranks} ranks ({schedule}) needs {fewest}: "
            f"try {max(1, share // fewest)}"
        )
    elif ranks > 1 and schedule == "interleaved" and parts % (parts // ranks):
        yield (
            f"train.micro_batch: {parts} micro-batches of {spec.train.micro_batch} cannot be "
            f"interleaved over a pipeline of {ranks} ranks; try a multiple of {ranks} of them"
        )


def _multiples_near(value: int, unit: int) -> str:
    below = value - value % unit
    return f"{below} or {below + unit}" if below else f"{unit}"
