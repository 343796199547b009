"""The construction of the model of a spec, and the initialization of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import overload

import torch
from torch import Tensor

from checkpointing.layout.dtensor_placement import local_shard
from hpckit.config.spec import DecoderSpec, GptSpec, ModelSpec, ResnetSpec, VitSpec
from hpckit.trainer.models.base_model import Model
from hpckit.trainer.models.decoder import DecoderModel, LayerRange
from hpckit.trainer.models.gpt import GPT
from hpckit.trainer.models.llama import Llama
from hpckit.trainer.models.resnet import ResNet
from hpckit.trainer.models.vit import ViT
from hpckit.trainer.parallel.local_tensor import local
from hpckit.trainer.random_seeds import mix


@overload
def build(
    size: DecoderSpec, part: LayerRange | None = None, dtype: torch.dtype = torch.float32
) -> DecoderModel: ...
@overload
def build(
    size: ModelSpec, part: LayerRange | None = None, dtype: torch.dtype = torch.float32
) -> Model: ...
def build(
    size: ModelSpec, part: LayerRange | None = None, dtype: torch.dtype = torch.float32
) -> Model:
    """Return the model, or a pipeline stage of a decoder, on the meta device. `materialise` then
    initializes it."""
    with torch.device("meta"), _default_dtype(dtype):
        match size:
            case ResnetSpec():
                return ResNet(size)
            case VitSpec():
                return ViT(size)
            case _:
                return GPT(size, part) if isinstance(size, GptSpec) else Llama(size, part)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the dtype of new parameters within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@overload
def make(size: DecoderSpec, seed: int, device: torch.device | None = None) -> DecoderModel: ...
@overload
def make(size: ModelSpec, seed: int, device: torch.device | None = None) -> Model: ...
def make(size: ModelSpec, seed: int, device: torch.device | None = None) -> Model:
    """Return the whole model with initialized parameters, on the CPU by default."""
    model = build(size)
    materialise(model, device or torch.device("cpu"), seed)
    return model


def materialise(model: Model, device: torch.device, seed: int) -> None:
    """Allocate and initialize parameters and buffers."""
    allocate(model, device, seed)
    initialize_parameters(model, seed)


def allocate(model: Model, device: torch.device, seed: int) -> None:
    """Allocate parameters and buffers on `device`, and initialize only the buffers."""
    model.to_empty(device=device)
    _initialize(model, model.named_buffers(), seed)


def initialize_parameters(
    model: Model, seed: int, which: Callable[[str], bool] | None = None
) -> None:
    """Initialize the parameters, or only those for whose names `which` returns true."""
    named = model.named_parameters()
    _initialize(model, ((name, p) for name, p in named if which is None or which(name)), seed)


@torch.no_grad()
def _initialize(model: Model, named: Iterable[tuple[str, Tensor]], seed: int) -> None:
    """Initialize tensors. Values depend only on `seed` and the names: for any sharding, each rank
    draws the whole tensor and keeps its part."""
    for name, tensor in named:
        generator = torch.Generator().manual_seed(mix(seed, name))
        whole = torch.empty(tensor.shape)
        model.initialize_tensor(name, whole, generator)
        _copy_part(name, whole, tensor)


def _copy_part(name: str, whole: Tensor, tensor: Tensor) -> None:
    shard = local_shard(name, tensor)
    assert shard is not None
    own = local(tensor)
    for box, at in shard.parts:
        own[at.slices].copy_(whole[box.slices])
