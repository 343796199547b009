"""Making the model of a spec, and filling it with its first parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from checkpointing.placement import held
from hpckit.run.spec import GptSpec, ModelSpec
from hpckit.training.models.decoder import Decoder, Part
from hpckit.training.models.gpt import GPT
from hpckit.training.models.llama import Llama
from hpckit.training.parallel.local import local
from hpckit.training.random import mix


def build(size: ModelSpec, part: Part | None = None, dtype: torch.dtype = torch.float32) -> Decoder:
    """The model, or a part of it, on the meta device: shapes alone, to be filled by
    `materialise`."""
    with torch.device("meta"), _by_default(dtype):
        return GPT(size, part) if isinstance(size, GptSpec) else Llama(size, part)


@contextmanager
def _by_default(dtype: torch.dtype) -> Iterator[None]:
    """New parameters are of this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make(size: ModelSpec, seed: int, device: torch.device | None = None) -> Decoder:
    """A whole model with its first parameters, on the CPU if nothing else is said."""
    model = build(size)
    materialise(model, device or torch.device("cpu"), seed)
    return model


@torch.no_grad()
def materialise(model: Decoder, device: torch.device, seed: int) -> None:
    """Give the parameters memory and their first values, which depend on `seed` and on their names
    alone: however the model is spread, a rank draws a parameter whole and keeps its share. Buffers
    begin at zero."""
    model.to_empty(device=device)
    for buffer in model.buffers():
        buffer.zero_()
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(mix(seed, name))
        whole = torch.empty(parameter.shape)
        model.draw(name, whole, generator)
        _keep(name, whole, parameter)


def _keep(name: str, whole: Tensor, parameter: Tensor) -> None:
    mine = held(name, parameter)
    assert mine is not None
    own = local(parameter)
    for box, at in mine.parts:
        own[at.slices].copy_(whole[box.slices])
