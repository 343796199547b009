"""Tensor and sequence parallelism: several ranks compute each layer together, and share the
sequence between layers.

Shoeybi et al., "Megatron-LM" (2019); Korthikanti et al., "Reducing Activation Recomputation in
Large Transformer Models" (2022). Between layers, each rank has a part of the positions, so that
norms and their activations are divided as well.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from hpckit.trainer.models.decoder import DecoderModel

_POSITIONS = Shard(1)  # of (batch, time, width)


def apply_tensor_parallel(model: DecoderModel, mesh: DeviceMesh) -> None:
    """Shard `model` in place over the ranks of `mesh`, which has one dimension."""
    for block in model.blocks.values():
        parallelize_module(block, mesh, _block_plan(model))
    parallelize_module(model, mesh, _ends_plan(model))


def _block_plan(model: DecoderModel) -> dict[str, ParallelStyle]:
    styles: dict[str, ParallelStyle] = {
        "norm_attention": SequenceParallel(),
        "attention": _gather_positions(),
        "norm_mlp": SequenceParallel(),
        "mlp": _gather_positions(),
    }
    styles |= {name: ColwiseParallel() for name in model.COLUMNS}
    return styles | {name: RowwiseParallel(output_layouts=_POSITIONS) for name in model.ROWS}


def _ends_plan(model: DecoderModel) -> dict[str, ParallelStyle]:
    """Return the plan of the embedding and the output layer, which are sharded by tokens of the
    vocabulary."""
    names = {name for name, _ in model.named_modules()}
    styles: dict[str, ParallelStyle] = {}
    if "embedding.token" in names:
        styles["embedding.token"] = RowwiseParallel(input_layouts=Replicate())
    if model.part.is_first:
        styles["embedding"] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=_POSITIONS
        )
    if model.part.is_last:
        styles["norm"] = SequenceParallel()
        styles["unembedding"] = PrepareModuleInput(
            input_layouts=(_POSITIONS, None, None),
            desired_input_layouts=(Replicate(), None, None),
        )
    if "output" in names:
        styles["output"] = ColwiseParallel()
    return styles


def _gather_positions() -> PrepareModuleInput:
    return PrepareModuleInput(input_layouts=_POSITIONS, desired_input_layouts=Replicate())
