"""The state that the first step of one of torch's optimizers creates, without that step.

A step of small stand-ins of the parameters shows which tensors and values there are. A whole step
would also take gradients, read all parameters, and write all of the state, before a restore writes
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from checkpointing.distributed_classes import dtensor_class
from checkpointing.state.optimizer_step import parameters_of, step_quietly
from checkpointing.state.unfilled_tensors import unfilled_like
from checkpointing.torch_internals import held_tensor

_Kind: TypeAlias = "tuple[int, int, torch.dtype, torch.device]"
"""What the state of a parameter depends on: the number of its group, its dimensions, dtype and
device."""

_KNOWN = frozenset(
    kind
    for name in (
        *("ASGD", "Adadelta", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop"),
        *("Rprop", "SGD"),
    )
    if (kind := getattr(optim, name, None)) is not None  # Muon is one since torch 2.9
)
"""Optimizers whose state is, for each parameter, tensors of its shape and sharding, scalars and
values, whatever the parameter has. Of Adafactor, the shape is another one; Adagrad and SparseAdam
have theirs early, or need other gradients; LBFGS needs a closure."""
_SIDE = 3
"""Extent of a stand-in in each dimension: no extent that a state would have of itself."""
_REPLACED = frozenset({"step", "zero_grad"})
"""Methods that others, such as schedulers, replace in an optimizer, and that are not called."""
_VALUES = (bool, int, float, str, type(None))


def state_after_step(optimizer: Optimizer) -> dict[Tensor, dict[str, Any]] | None:
    """Returns the state that each parameter of an optimizer without any has after its first step.
    Tensors of a parameter's shape are new and have undefined content. Nothing of the optimizer is
    read besides its options, or changed. None: only a step of all parameters shows it.

    Raises: what the step raises.
    """
    if not _is_known(optimizer):
        return None
    kinds = {
        parameter: _kind(number, parameter)
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if parameter.requires_grad
    }
    by_kind = {kind: _stand_in(kind) for kind in kinds.values()}
    states = _stepped(optimizer, by_kind)
    if states.keys() - by_kind.values():  # state of no parameter
        return None
    found: dict[Tensor, dict[str, Any]] = {p: {} for p in parameters_of(optimizer)}
    for parameter, kind in kinds.items():
        for key, value in states.get(by_kind[kind], {}).items():
            if isinstance(value, Tensor):
                made = _like(value, parameter, by_kind[kind])
                if made is None:
                    return None
                found[parameter][key] = made
            elif isinstance(value, _VALUES):
                found[parameter][key] = value
            else:
                return None
    return found


def _is_known(optimizer: Optimizer) -> bool:
    """Whether stand-ins step as the parameters would."""
    kind = type(optimizer)
    methods = {name for name in vars(optimizer) if callable(getattr(kind, name, None))}
    return (
        kind in _KNOWN
        and _is_of_torch(kind.step)
        and not optimizer.state
        and methods <= _REPLACED
        and not any(group.get("differentiable") for group in optimizer.param_groups)
        and all(map(_is_plain, parameters_of(optimizer)))
    )


def _is_of_torch(step: Any) -> bool:
    """Returns whether a function and all functions that it wraps are torch's own. A function of the
    user may depend on the parameters themselves, for which stand-ins are used here."""
    while step is not None:
        if not getattr(step, "__globals__", {}).get("__name__", "").startswith("torch."):
            return False
        step = getattr(step, "__wrapped__", None)
    return True


def _is_plain(parameter: Tensor) -> bool:
    """Whether a parameter is one of numbers in memory, or a DTensor of such."""
    is_sharded = type(parameter) is dtensor_class() and parameter.dim() > 0
    held = held_tensor(parameter) if is_sharded else parameter
    return (
        type(held) in (nn.Parameter, Tensor)
        and parameter.device.type in ("cpu", "cuda")
        and parameter.layout is torch.strided
        and (parameter.is_floating_point() or parameter.is_complex())
    )


def _kind(number: int, parameter: Tensor) -> _Kind:
    return number, parameter.dim(), parameter.dtype, parameter.device


def _stand_in(kind: _Kind) -> Tensor:
    """Returns a tensor in place of the parameters of a kind, with its gradient."""
    _, dimensions, dtype, device = kind
    made = torch.zeros((_SIDE,) * dimensions, dtype=dtype, device=device)
    made.grad = torch.zeros_like(made)
    return made


def _stepped(
    optimizer: Optimizer, by_kind: Mapping[_Kind, Tensor]
) -> Mapping[Tensor, Mapping[str, Any]]:
    """Returns the state of an optimizer like this one after a step of the stand-ins."""
    kind = type(optimizer)
    copied = object.__new__(kind)
    vars(copied).update(vars(optimizer))
    copied.state = defaultdict(dict)
    copied.param_groups = [
        {**group, "params": [one for its, one in by_kind.items() if its[0] == number]}
        for number, group in enumerate(optimizer.param_groups)
    ]
    step_quietly(copied)
    return copied.state


def _like(value: Tensor, parameter: Tensor, stand_in: Tensor) -> Tensor | None:
    """Returns a tensor for `parameter` as `value` is one for its stand-in; None if it is of another
    kind."""
    if type(value) is not Tensor or value.layout is not torch.strided:
        return None
    if value.dim() == 0:
        return value.clone()
    if value.shape == stand_in.shape and value.device == parameter.device:
        return unfilled_like(parameter, value.dtype)
    return None
