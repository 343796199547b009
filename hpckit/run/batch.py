"""How many samples a step takes on so many ranks, and how the learning rate follows. Pure."""

from __future__ import annotations

import math

from hpckit.run.degrees import degrees
from hpckit.run.spec import RunSpec


def global_batch(spec: RunSpec, world: int) -> int:
    """Samples of a step on `world` ranks."""
    if spec.elastic.scale_lr is None:
        return spec.train.global_batch
    full = degrees(spec.parallel, spec.launch.nodes * spec.launch.gpus_per_node)
    return spec.train.global_batch // full.data * degrees(spec.parallel, world).data


def share_of_rank(spec: RunSpec, world: int) -> int:
    """Samples of a step that each of `world` ranks takes through its part of the model."""
    return global_batch(spec, world) // degrees(spec.parallel, world).data


def lr_scale(spec: RunSpec, world: int) -> float:
    """By how much the learning rate of `world` ranks differs from that of all of them."""
    ratio = global_batch(spec, world) / spec.train.global_batch
    return math.sqrt(ratio) if spec.elastic.scale_lr == "sqrt" else ratio
