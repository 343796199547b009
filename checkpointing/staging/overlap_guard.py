"""Noticing that tensors change while they are copied: before the optimizer does it, and after
anybody else did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


class StepHooks:
    """Calls `before_step` in front of every step of these optimizers, until it is closed."""

    def __init__(self, optimizers: Iterable[Optimizer], before_step: Callable[[], None]) -> None:
        def hook(*_: Any) -> None:
            before_step()

        self._handles = [opt.register_step_pre_hook(hook) for opt in optimizers]

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class Versions:
    """The versions of tensors, as torch counts their changes in place.

    Not counted are changes through `.data`, by what is not torch, by fused optimizers, and of
    DTensors by `torch._foreach_*`. torch counts a change when it has been made: an operation that
    is still running in another thread is not seen.
    """

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """
        Args:
            tensors: name and tensor; `is_counted` of each.
        """
        self._seen: list[tuple[str, Tensor, int]] = []
        for name, tensor in tensors:
            self._seen.append((name, tensor, tensor._version))
            if isinstance(tensor, DTensor):  # what it holds here is counted by itself
                self._seen.append((name, tensor._local_tensor, tensor._local_tensor._version))

    def changed(self) -> list[str]:
        """Names of those that were written to since then."""
        names = [name for name, tensor, version in self._seen if tensor._version != version]
        return list(dict.fromkeys(names))


def is_counted(tensor: Tensor) -> bool:
    """Whether torch counts its changes at all: not those of inference tensors."""
    inside = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return not (tensor.is_inference() or inside.is_inference())
