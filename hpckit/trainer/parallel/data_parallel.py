"""Data parallelism, which replicates and shards a model over the ranks that have samples of their
own."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)

from hpckit.config.parallel_degrees import degrees, gathers_layers
from hpckit.config.spec import ParallelSpec, PrecisionSpec
from hpckit.torch_internals import replicate_over_one_dimension

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,  # for all but the products of `hpckit.trainer.precision.fp8_linear`
}


def shard(
    model: nn.Module,
    blocks: Iterable[nn.Module],
    mesh: DeviceMesh,
    parallel: ParallelSpec,
    precision: PrecisionSpec,
    *,
    offload: bool,
) -> None:
    """Replicate or shard the parameters and gradients of `model`, and so the optimizer's state,
    over `mesh`, in place.

    Each of `blocks` is gathered and reduced as one unit, and the rest of the model as another.

    Args:
        mesh: has the dimension "replicate", "shard" or both.
        offload: whether the shards are kept in the memory of the host.
    """
    # The views are losses or logits, into which nobody writes.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    shard_layers(blocks, mesh, parallel, precision, offload=offload)
    _apply_fsdp(model, mesh, precision, reshard_after_forward=False, offload=offload)


def shard_layers(
    layers: Iterable[nn.Module],
    mesh: DeviceMesh,
    parallel: ParallelSpec,
    precision: PrecisionSpec,
    *,
    offload: bool,
) -> None:
    """Shard some layers of a model, each as one unit, before `shard` is called for the model."""
    reshard_after_forward = gathers_layers(parallel.zero, degrees(parallel, dist.get_world_size()))
    for layer in layers:
        _apply_fsdp(
            layer, mesh, precision, reshard_after_forward=reshard_after_forward, offload=offload
        )


def _apply_fsdp(
    module: nn.Module,
    mesh: DeviceMesh,
    precision: PrecisionSpec,
    *,
    reshard_after_forward: bool,
    offload: bool,
) -> None:
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[precision.compute], reduce_dtype=DTYPES[precision.reduce]
    )
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    if mesh.mesh_dim_names == ("replicate",):
        replicate = replicate_over_one_dimension()
        assert replicate is not None, "make_mesh has asked for it"
        replicate(module, **options)
    else:
        fully_shard(module, reshard_after_forward=reshard_after_forward, **options)


def reshard_models(models: Iterable[nn.Module]) -> None:
    """Free the parameters that a forward pass without a backward pass has left gathered."""
    for module in (module for model in models for module in model.modules()):
        if isinstance(module, FSDPModule):
            module.reshard()


def before_micro_batch(model: nn.Module, parallel: ParallelSpec, *, is_last: bool) -> None:
    """Set which collectives the next backward pass includes.

    Args:
        is_last: whether it is that of the last micro-batch of a step.
    """
    if not isinstance(model, FSDPModule):  # other modules do not have the settings
        return
    model.set_requires_gradient_sync(is_last or not parallel.no_sync)
    # With ZeRO 1, which shards only the optimizer's state, parameters are gathered once a step.
    model.set_reshard_after_backward(is_last or parallel.zero > 1)
