"""A step of an optimizer that changes nothing, which shows the state that it will have."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


@contextmanager
def stepped_once(optimizer: Optimizer) -> Iterator[None]:
    """Give the optimizer, for the length of the block, the state that a step creates, by a step
    with zero gradients and a learning rate of zero, as torch's own helpers do. Afterwards
    everything is as before."""
    groups = [dict(group) for group in optimizer.param_groups]
    before: dict[Any, Any] = dict(optimizer.state)
    is_empty = all(isinstance(state, dict) and not state for state in before.values())
    gradients = {p: p.grad for p in parameters_of(optimizer)}
    try:
        for parameter in gradients:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        for group in optimizer.param_groups:
            if "lr" in group:
                lr = group["lr"]
                group["lr"] = torch.zeros_like(lr) if isinstance(lr, Tensor) else 0.0
        if is_empty:
            step_quietly(optimizer)
        yield
    finally:
        for state in before.values() if is_empty else ():
            state.clear()  # in case the step has filled it
        for group, was in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(was)
        optimizer.state.clear()
        optimizer.state.update(before)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient


def step_quietly(optimizer: Optimizer) -> None:
    """Step the optimizer without its hooks and the counts of schedulers. One that needs a closure
    creates no state."""
    step: Any = type(optimizer).step
    inner = getattr(step, "__wrapped__", step)
    closure = inspect.signature(inner).parameters.get("closure")
    if closure is None or closure.default is not inspect.Parameter.empty:
        inner(optimizer)


def parameters_of(optimizer: Optimizer) -> Iterator[Any]:
    """Yields the parameters of all groups."""
    for group in optimizer.param_groups:
        yield from group["params"]
