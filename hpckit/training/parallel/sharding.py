"""Replicating and sharding a model over the ranks that have samples of their own."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from hpckit.run.spec import ParallelSpec, PrecisionSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def shard(
    model: nn.Module,
    blocks: Iterable[nn.Module],
    mesh: DeviceMesh,
    parallel: ParallelSpec,
    precision: PrecisionSpec,
) -> FSDPModule:
    """Replicate or shard parameters, gradients and so the optimizer's state over `mesh`, in place.

    Each of `blocks` is gathered, and reduced, as one when its turn comes, all the rest together.

    Args:
        mesh: "replicate", "shard" or both.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[precision.compute], reduce_dtype=DTYPES[precision.reduce]
    )
    if mesh.mesh_dim_names == ("replicate",):
        for block in blocks:
            replicate(block, mesh=mesh, mp_policy=policy)
        return replicate(model, mesh=mesh, mp_policy=policy)
    # The micro-batches of a pipeline take turns: it would gather each layer for each of them.
    gather_again = parallel.zero == 3 and parallel.pipeline == 1
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=gather_again)
    sharded = fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    assert isinstance(sharded, FSDPModule)
    return sharded


def before_micro_batch(model: FSDPModule, parallel: ParallelSpec, *, is_last: bool) -> None:
    """What the ranks do together in the backward pass to come; `is_last`: of its step."""
    model.set_requires_gradient_sync(is_last or parallel.reduce == "each")
    # With what only the optimizer needs sharded, parameters are gathered once a step.
    model.set_reshard_after_backward(is_last or parallel.zero > 1)


def micro_batches(share: int, micro: int) -> int:
    """Micro-batches of equal size that a rank's `share` of the global batch is cut into."""
    return max(1, share // micro)
