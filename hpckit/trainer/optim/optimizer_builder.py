"""Construction of the optimizer of a spec and its parameter groups."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from hpckit.config.spec import OptimSpec
from hpckit.trainer.optim.muon import Muon


def build_optimizer(model: nn.Module, spec: OptimSpec) -> Optimizer:
    """Build an optimizer of the trained parameters of `model`, with weight decay on matrices alone.

    Decay of gains and biases does harm (Loshchilov & Hutter 2019 leave it open; GPT-2 and later
    exclude parameters with fewer than two dimensions). A group is updated by one kernel (with SGD,
    whose fused kernel torch 2.13 does not support for DTensors, by a few): by default, torch would
    update parameter after parameter as soon as they are DTensors.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if spec.kind == "muon":
        return _muon(named, spec)
    groups = _decayed([p for _, p in named], spec)
    if spec.kind == "sgd":
        momentum = spec.momentum or 0.0
        return SGD(groups, lr=spec.lr, momentum=momentum, nesterov=momentum > 0, foreach=True)
    beta1, beta2, eps = _of_adamw(spec)
    return AdamW(groups, lr=spec.lr, betas=(beta1, beta2), eps=eps, fused=True)


def is_inside(name: str, parameter: Tensor) -> bool:
    """Whether the parameter is a matrix, or a stack of them, of a block: no embedding or output
    layer, whose rows belong to tokens (Jordan et al. 2024)."""
    return "blocks" in name.split(".") and parameter.dim() in (2, 3)


def _muon(named: list[tuple[str, nn.Parameter]], spec: OptimSpec) -> Muon:
    assert spec.momentum is not None
    inside = [p for name, p in named if is_inside(name, p)]
    others = [p for name, p in named if not is_inside(name, p)]
    matrices = {"params": inside, "weight_decay": spec.weight_decay, "momentum": spec.momentum}
    adam = dict(zip(("beta1", "beta2", "eps"), _of_adamw(spec), strict=True))
    groups = [matrices] if inside else []
    return Muon([*groups, *({**group, **adam} for group in _decayed(others, spec))], spec.lr)


def _of_adamw(spec: OptimSpec) -> tuple[float, float, float]:
    """Return AdamW's betas and epsilon."""
    assert spec.beta1 is not None
    assert spec.beta2 is not None
    assert spec.eps is not None
    return spec.beta1, spec.beta2, spec.eps


def _decayed(parameters: list[nn.Parameter], spec: OptimSpec) -> list[dict[str, Any]]:
    """Split parameters into groups, each of one mesh, as kernels require, and with or without
    decay. None is empty, because a state by names has no place for an empty group."""
    groups: dict[tuple[float, DeviceMesh | None], list[nn.Parameter]] = {}
    for p in parameters:
        decay = spec.weight_decay if p.dim() >= 2 else 0.0
        mesh = p.device_mesh if isinstance(p, DTensor) else None
        groups.setdefault((decay, mesh), []).append(p)
    return [{"params": those, "weight_decay": decay} for (decay, _), those in groups.items()]
