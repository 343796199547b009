"""How many samples a step takes on so many ranks, and how the learning rate follows. Pure."""

from __future__ import annotations

import math

from hpckit.run.spec import RunSpec


def global_batch(spec: RunSpec, world: int) -> int:
    """Samples of a step on `world` ranks."""
    if spec.elastic.scale_lr is None:
        return spec.train.global_batch
    return spec.train.global_batch // _full_world(spec) * world


def lr_scale(spec: RunSpec, world: int) -> float:
    """By how much the learning rate of `world` ranks differs from that of all of them."""
    ratio = global_batch(spec, world) / spec.train.global_batch
    return math.sqrt(ratio) if spec.elastic.scale_lr == "sqrt" else ratio


def _full_world(spec: RunSpec) -> int:
    return spec.launch.nodes * spec.launch.gpus_per_node
