"""The modules of a program, and the ways in which torch wraps them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tests.trainers.meshes import mesh_of
from tests.trainers.programs import Layer, Program, Wrapping

WORDS = 12
"""Of the embedding, and features of the head."""
_RECOMPUTED = "_checkpoint_wrapped_module."


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, has_bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=has_bias)
        self.down = nn.Linear(hidden, width, bias=has_bias)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.up(x).relu())
        return found


class Conv(nn.Module):
    def __init__(self, has_bias: bool) -> None:
        super().__init__()
        self.inner = nn.Conv1d(1, 1, 3, padding=1, bias=has_bias)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x.unsqueeze(1)).squeeze(1)
        return found


class Scale(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Counted(nn.Module):
    """A linear one that has buffers of several kinds."""

    seen: Tensor
    offset: Tensor
    cache: Tensor

    def __init__(self, width: int, has_bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, bias=has_bias)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("offset", torch.linspace(0, 1, width))
        self.register_buffer("cache", torch.ones(width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        found: Tensor = self.inner(x) + self.offset.to(x.dtype) * self.cache.to(x.dtype)
        return found


class Net(nn.Module):
    """An embedding, layers with the input added, and a head; another head is never used."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        width = program.width
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleDict(
            {name: made(layer, width, program.hidden) for name, layer in program.layers.items()}
        )
        self.head = nn.Linear(width, WORDS, bias=not program.is_tied)
        if program.has_spare:
            self.spare = nn.Linear(width, 3)
        if program.is_tied:
            self.head.weight = self.embed.weight

    def forward(self, words: Tensor, used: frozenset[str]) -> Tensor:
        x = self.embed(words)
        for name, layer in self.layers.items():
            if name in used:
                dtype = next((p.dtype for p in layer.parameters()), x.dtype)
                x = x + layer(x.to(dtype)).to(x.dtype)
        found: Tensor = self.head(x)
        return found


def made(layer: Layer, width: int, hidden: int) -> nn.Module:
    kinds: dict[str, Any] = {
        "linear": lambda: nn.Linear(width, width, bias=layer.has_bias),
        "mlp": lambda: Mlp(width, hidden, layer.has_bias),
        "conv": lambda: Conv(layer.has_bias),
        "layernorm": lambda: nn.LayerNorm(width, bias=layer.has_bias),
        "batchnorm": lambda: nn.BatchNorm1d(width, affine=layer.has_bias),
        "scale": Scale,
        "counted": lambda: Counted(width, layer.has_bias),
        "dropout": lambda: nn.Dropout(0.2),
    }
    module: nn.Module = kinds[layer.kind]()
    if layer.is_bf16 and layer.kind != "batchnorm":
        for parameter in module.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return module.requires_grad_(not layer.is_frozen)


def wrap(net: Net, program: Program, wrapping: Wrapping) -> nn.Module:
    """The module that is trained and saved, around `net`, which is wrapped in place."""
    if wrapping.is_recomputed:
        for name, layer in net.layers.items():
            if not any(True for _ in layer.buffers()):  # which a second forward changes again
                net.layers[name] = checkpoint_wrapper(layer)
    mesh = mesh_of(wrapping.kind)
    if wrapping.kind.endswith("tp"):
        assert mesh is not None
        _cut(net, mesh["tp"] if mesh.ndim == 2 else mesh, is_tied=program.is_tied)
    if wrapping.kind in ("fsdp", "hsdp", "fsdp+tp"):
        assert mesh is not None
        over = mesh["dp"] if wrapping.kind == "fsdp+tp" else mesh
        _shard(net, over, program, is_fine=wrapping.is_fine)
    module: nn.Module = net
    if wrapping.is_compiled:
        module = torch.compile(net, backend="eager")  # type: ignore[assignment]
    if wrapping.kind == "ddp":
        module = DistributedDataParallel(module, find_unused_parameters=True)
    return module


def names_of(net: nn.Module) -> dict[Tensor, str]:
    """The name of each parameter, as in a program that recomputes nothing."""
    return {p: name.replace(_RECOMPUTED, "") for name, p in net.named_parameters()}


def _cut(net: Net, mesh: DeviceMesh, *, is_tied: bool) -> None:
    whole = ColwiseParallel(output_layouts=Replicate())
    plan: dict[str, Any] = {"embed": RowwiseParallel(input_layouts=Replicate()), "head": whole}
    for name, layer in net.layers.items():
        inner = getattr(layer, "_checkpoint_wrapped_module", layer)
        path = f"layers.{name}" + (f".{_RECOMPUTED[:-1]}" if inner is not layer else "")
        if isinstance(inner, nn.Linear):
            plan[path] = whole
        elif isinstance(inner, Mlp) and inner.up.out_features % mesh.size():
            plan |= {f"{path}.up": whole, f"{path}.down": whole}
        elif isinstance(inner, Mlp):
            plan |= {f"{path}.up": ColwiseParallel(), f"{path}.down": RowwiseParallel()}
    parallelize_module(net, mesh, plan)
    if is_tied:
        net.head.weight = net.embed.weight


def _shard(net: Net, mesh: DeviceMesh, program: Program, *, is_fine: bool) -> None:
    scalars = {p for p in net.parameters() if p.ndim == 0}
    for name, layer in net.layers.items():
        if any(True for p in layer.parameters() if p not in scalars):
            is_bf16 = program.layers[name].is_bf16 if name in program.layers else False
            if is_fine or is_bf16:  # a group has one dtype
                fully_shard(layer, mesh=mesh, ignored_params=scalars)
    fully_shard(net, mesh=mesh, ignored_params=scalars)
