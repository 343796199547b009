"""Spreading a model over the ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from hpckit.run.spec import PrecisionSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def shard(
    model: nn.Module, blocks: nn.ModuleList, mesh: DeviceMesh, precision: PrecisionSpec
) -> FSDPModule:
    """Shard parameters, gradients and so the optimizer's state over `mesh` (FSDP2), in place.

    Each of `blocks` is gathered as one when its turn comes, all the rest together.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[precision.compute], reduce_dtype=DTYPES[precision.reduce]
    )
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    sharded = fully_shard(model, mesh=mesh, mp_policy=policy)
    assert isinstance(sharded, FSDPModule)
    return sharded


def micro_batches(share: int, micro: int) -> int:
    """Micro-batches of equal size that a rank's `share` of the global batch is cut into."""
    return max(1, share // micro)
