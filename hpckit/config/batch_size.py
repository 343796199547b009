"""Pure functions for the number of samples of a step on a number of ranks, and the learning rate
for it."""

from __future__ import annotations

import math
from typing import Literal

from hpckit.config.parallel_degrees import degrees
from hpckit.config.spec import RunSpec


def global_batch(spec: RunSpec, world: int) -> int:
    """Returns the number of samples of a step on `world` ranks."""
    if spec.elastic.scale_lr is None:
        return spec.train.global_batch
    full = degrees(spec.parallel, spec.launch.nodes * spec.launch.nproc_per_node)
    return spec.train.global_batch // full.data * degrees(spec.parallel, world).data


def samples_before(spec: RunSpec, step: int) -> int:
    """Returns the number of samples of the first `step` steps with the full global batch."""
    return step * spec.train.global_batch


def share_of_rank(spec: RunSpec, world: int) -> int:
    """Returns the number of samples of a step that each of `world` ranks takes through its part of
    the model."""
    return global_batch(spec, world) // degrees(spec.parallel, world).data


def micro_batch_count(share: int, micro: int) -> int:
    """Returns the number of micro-batches of equal size in a rank's `share` of the global batch."""
    return max(1, share // micro)


def lr_scale(spec: RunSpec, world: int) -> float:
    """Returns the factor of the learning rate on `world` ranks: it is scaled from
    `optim.base_batch` to the full global batch, and from there by `elastic.scale_lr` to the batch
    of these ranks."""
    whole, optim = spec.train.global_batch, spec.optim
    elastic = _scaled(global_batch(spec, world) / whole, spec.elastic.scale_lr)
    return elastic * _scaled(whole / (optim.base_batch or whole), optim.scale)


def _scaled(ratio: float, rule: Literal["linear", "sqrt"] | None) -> float:
    """Returns the ratio of learning rates for a ratio of batch sizes."""
    return math.sqrt(ratio) if rule == "sqrt" else ratio
