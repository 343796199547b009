"""Low-rank adapters of linear layers, beside frozen parameters.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import functional

from hpckit.config.model_layers import adapted
from hpckit.config.spec import DecoderSpec, LoraSpec
from hpckit.trainer.models.decoder import LORA_A, LORA_B, DecoderModel


def adapt(model: DecoderModel, size: DecoderSpec, lora: LoraSpec) -> None:
    """Freeze the parameters of `model`, whose names do not change, and add adapters to the linear
    layers of its blocks that `lora` names.

    The adapters of layers that tensor parallelism has sharded are sharded as well.
    """
    model.requires_grad_(False)
    for block in model.blocks.values():
        for name in adapted(size, lora):
            layer = block.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            _add_adapter(layer, lora)


def is_adapter(name: str) -> bool:
    """Whether `name` is that of a parameter of an adapter."""
    return name.endswith((f".{LORA_A}", f".{LORA_B}"))


def merged(weight: Tensor, a: Tensor, b: Tensor, lora: LoraSpec) -> Tensor:
    """Return the weight of a layer with its adapters merged, in the dtype of `weight`.

    Args:
        weight: (outputs, inputs), or some of its rows and columns.
        a: (rank, inputs), with the same columns.
        b: (outputs, rank), with the same rows.
    """
    added = (lora.alpha / lora.rank * b.float()) @ a.float()
    return (weight.float() + added).to(weight.dtype)


def _add_adapter(layer: nn.Linear, lora: LoraSpec) -> None:
    weight = layer.weight
    kind: dict[str, Any] = {"dtype": weight.dtype, "device": weight.device}
    a = torch.empty(lora.rank, layer.in_features, **kind)
    b = torch.empty(layer.out_features, lora.rank, **kind)
    if isinstance(weight, DTensor):
        is_column = weight.placements == (Shard(0),)
        placement_a, placement_b = (Replicate(), Shard(0)) if is_column else (Shard(1), Replicate())
        a = distribute_tensor(a, weight.device_mesh, [placement_a])
        b = distribute_tensor(b, weight.device_mesh, [placement_b])
    layer.register_parameter(LORA_A, nn.Parameter(a))
    layer.register_parameter(LORA_B, nn.Parameter(b))
    # called before the hooks of tensor parallelism, which process the sum
    layer.register_forward_hook(partial(_add_output, lora.alpha / lora.rank), prepend=True)


def _add_output(scale: float, layer: Any, inputs: tuple[Tensor], out: Tensor) -> Tensor:
    (x,) = inputs
    return out + functional.linear(scale * functional.linear(x, layer.lora_a), layer.lora_b)
