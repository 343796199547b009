"""How many samples a step takes on so many ranks, and how the learning rate follows. Pure."""

from __future__ import annotations

import math
from typing import Literal

from hpckit.config.parallel_degrees import degrees
from hpckit.config.spec import RunSpec


def global_batch(spec: RunSpec, world: int) -> int:
    """Samples of a step on `world` ranks."""
    if spec.elastic.scale_lr is None:
        return spec.train.global_batch
    full = degrees(spec.parallel, spec.launch.nodes * spec.launch.gpus_per_node)
    return spec.train.global_batch // full.data * degrees(spec.parallel, world).data


def share_of_rank(spec: RunSpec, world: int) -> int:
    """Samples of a step that each of `world` ranks takes through its part of the model."""
    return global_batch(spec, world) // degrees(spec.parallel, world).data


def micro_batch_count(share: int, micro: int) -> int:
    """Micro-batches of equal size that a rank's `share` of the global batch is cut into."""
    return max(1, share // micro)


def lr_scale(spec: RunSpec, world: int) -> float:
    """What to multiply the learning rate of `world` ranks by: it follows `optim.base_batch` to the
    batch of all of them, and from there `elastic.scale_lr` to theirs."""
    whole, optim = spec.train.global_batch, spec.optim
    elastic = _followed(global_batch(spec, world) / whole, spec.elastic.scale_lr)
    return elastic * _followed(whole / (optim.base_batch or whole), optim.scale)


def _followed(ratio: float, rule: Literal["linear", "sqrt"] | None) -> float:
    """Of learning rates, where the ratio of batches is `ratio`."""
    return math.sqrt(ratio) if rule == "sqrt" else ratio
