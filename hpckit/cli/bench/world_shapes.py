"""The nodes and ranks on which a model is trained to measure scaling, and the overrides for them.
Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hpckit.cli.bench.short_run import short_run_words
from hpckit.config.parallel_degrees import degrees
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError
from hpckit.planner.memory.memory_footprint import BYTES
from hpckit.planner.model.model_work import work_of


@dataclass(frozen=True, order=True)
class WorldShape:
    """A number of nodes, and of ranks on each."""

    nodes: int
    workers: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.workers

    def __str__(self) -> str:
        return f"{self.nodes}x{self.workers}"


@dataclass(frozen=True)
class ScalingWorkload:
    """The workload of the runs."""

    steps: int
    is_strong: bool
    """Whether all runs have the same global batch (strong scaling), instead of the same work per
    rank."""


def parse_world(text: str) -> WorldShape:
    """Parse "nodes x workers", as in 2x8.

    Raises:
        ValueError: the text is invalid.
    """
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text.strip())
    if not found:
        raise ValueError(
            f"{text!r} is not a number of nodes and workers; give NODESxWORKERS, as in 2x8"
        )
    return WorldShape(int(found[1]), int(found[2]))


def doubling(nodes: int, workers: int) -> list[WorldShape]:
    """Return shapes from one rank to all of a node, then from one node to `nodes`, doubling each
    time."""
    return [
        *(WorldShape(1, count) for count in _doubled(workers)),
        *(WorldShape(count, workers) for count in _doubled(nodes)[1:]),
    ]


def _doubled(most: int) -> list[int]:
    below = [1 << power for power in range((most - 1).bit_length())]
    return [*below, most]


def overrides_of(
    spec: RunSpec,
    typed: Sequence[str],
    model: str,
    world: WorldShape,
    sizes: ScalingWorkload,
    root: str,
    threads: int,
) -> list[str]:
    """Return the overrides for launch.py that run `spec` on this shape.

    Args:
        threads: CPU threads of each rank.

    Raises:
        SpecError: the degrees of `parallel` do not fit.
    """
    name = f"scaling-{model.replace('_', '-')}-{world}"
    return [
        *typed,
        f"model={model}",
        *short_run_words(name, root, sizes.steps),
        *(f"launch.nodes={world.nodes}", f"launch.nproc_per_node={world.workers}"),
        *(f"launch.threads_per_worker={threads}", "train.trace_share=0.2"),
        f"train.global_batch={_global_batch(spec, world, sizes)}",
    ]


def threads_of(spec: RunSpec, worlds: Sequence[WorldShape], cores: int) -> int:
    """Return the CPU threads of each rank, the same in every world: what is given, or the share of
    the cores in the largest world. Else a rank alone would have all cores, and its steps would take
    another time than those of a rank in a larger world.

    Args:
        cores: those of this machine, which has all ranks of a local run.
    """
    if spec.launch.threads_per_worker:
        return spec.launch.threads_per_worker
    if spec.cluster.slurm is None:
        return max(1, cores // max(world.ranks for world in worlds))
    per_node = spec.cluster.slurm.cpus_per_node or 1  # unknown here; torchrun takes 1 then, too
    return max(1, per_node // max(world.workers for world in worlds))


def gradient_bytes(spec: RunSpec) -> int:
    """Return the bytes of all gradients of the model, as ranks reduce them."""
    return work_of(spec).trained * BYTES[spec.precision.reduce]


def _global_batch(spec: RunSpec, world: WorldShape, sizes: ScalingWorkload) -> int:
    if sizes.is_strong:
        return spec.train.global_batch
    try:
        found = degrees(spec.parallel, world.ranks)
        # the ranks of a pipeline have parts of a model, and as many micro-batches to keep them busy
        return spec.train.micro_batch * found.data * found.pipeline
    except ValueError as error:
        raise SpecError([f"{world}: {error}"]) from None
