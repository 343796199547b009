"""The optimizer of a spec: its construction, its parameter groups and its learning rate, which is a
function of the step, so that no state of a schedule has to be saved."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from hpckit.config.learning_rate import lr_factor
from hpckit.config.spec import OptimSpec
from hpckit.trainer.optim.muon import Muon


def build_optimizer(model: nn.Module, spec: OptimSpec) -> Optimizer:
    """Build an optimizer of the trained parameters of `model`, with weight decay only for matrices.

    Like GPT-2 and later models, parameters with fewer than two dimensions, which are gains and
    biases, have no weight decay. One kernel updates a whole group (with SGD a few kernels, since
    the fused one of torch 2.13 does not support DTensors); by default, torch would update DTensors
    one after the other."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if spec.kind == "muon":
        return _muon(named, spec)
    groups = _decay_groups([p for _, p in named], spec)
    if spec.kind == "sgd":
        momentum = spec.momentum or 0.0
        return SGD(groups, lr=spec.lr, momentum=momentum, nesterov=momentum > 0, foreach=True)
    beta1, beta2, eps = _adamw_settings(spec)
    return AdamW(groups, lr=spec.lr, betas=(beta1, beta2), eps=eps, fused=True)


def is_block_matrix(name: str, parameter: Tensor) -> bool:
    """Whether the parameter is a matrix, or a stack of matrices, of a block. Embeddings and output
    layers, whose rows belong to tokens, are not (Jordan et al. 2024)."""
    return "blocks" in name.split(".") and parameter.dim() in (2, 3)


def _muon(named: list[tuple[str, nn.Parameter]], spec: OptimSpec) -> Muon:
    assert spec.momentum is not None
    block_matrices = [p for name, p in named if is_block_matrix(name, p)]
    others = [p for name, p in named if not is_block_matrix(name, p)]
    matrices = {
        "params": block_matrices,
        "weight_decay": spec.weight_decay,
        "momentum": spec.momentum,
    }
    adam = dict(zip(("beta1", "beta2", "eps"), _adamw_settings(spec), strict=True))
    groups = [matrices] if block_matrices else []
    return Muon([*groups, *({**group, **adam} for group in _decay_groups(others, spec))], spec.lr)


def _adamw_settings(spec: OptimSpec) -> tuple[float, float, float]:
    """Return the betas and the epsilon of AdamW."""
    assert spec.beta1 is not None
    assert spec.beta2 is not None
    assert spec.eps is not None
    return spec.beta1, spec.beta2, spec.eps


def _decay_groups(parameters: list[nn.Parameter], spec: OptimSpec) -> list[dict[str, Any]]:
    """Split parameters into groups of one mesh each, as kernels require, with or without weight
    decay. No group is empty, because a state dict by names cannot represent an empty group."""
    groups: dict[tuple[float, DeviceMesh | None], list[nn.Parameter]] = {}
    for p in parameters:
        decay = spec.weight_decay if p.dim() >= 2 else 0.0
        mesh = p.device_mesh if isinstance(p, DTensor) else None
        groups.setdefault((decay, mesh), []).append(p)
    return [{"params": those, "weight_decay": decay} for (decay, _), those in groups.items()]


def set_lr(optimizer: Optimizer, spec: OptimSpec, step: float, steps: float, scale: float) -> float:
    """Set the learning rate for step `step` (from 0) of `steps`, times `scale`, and return it. Both
    may be those of a `SchedulePoint`."""
    lr = spec.lr * lr_factor(step, spec, steps) * scale
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr
