"""Tensor and sequence parallelism: several ranks compute each layer together, and the sequence is
divided between layers.

Shoeybi et al., "Megatron-LM" (2019); Korthikanti et al., "Reducing Activation Recomputation in
Large Transformer Models" (2022): between layers, each rank has a part of the positions, so that
norms and what they keep for the backward pass are divided as well.
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
    """Divide `model` in place over the ranks of `mesh`, which has one dimension."""
    for block in model.blocks.values():
        parallelize_module(block, mesh, _of_block(model))
    parallelize_module(model, mesh, _of_ends(model))


def _of_block(model: DecoderModel) -> dict[str, ParallelStyle]:
    styles: dict[str, ParallelStyle] = {
        "norm_attention": SequenceParallel(),
        "attention": _gathered(),
        "norm_mlp": SequenceParallel(),
        "mlp": _gathered(),
    }
    styles |= {name: ColwiseParallel() for name in model.COLUMNS}
    return styles | {name: RowwiseParallel(output_layouts=_POSITIONS) for name in model.ROWS}


def _of_ends(model: DecoderModel) -> dict[str, ParallelStyle]:
    """Return the plan of the embedding and the output layer, which are divided by tokens of the
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


def _gathered() -> PrepareModuleInput:
    return PrepareModuleInput(input_layouts=_POSITIONS, desired_input_layouts=Replicate())
