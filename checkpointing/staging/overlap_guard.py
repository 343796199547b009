"""Protects an overlapped copy: calls back before an optimizer changes tensors, and detects other
writes to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from checkpointing.distributed_classes import is_dtensor
from checkpointing.torch_internals import held_tensor, versions_of


class StepHooks:
    """Calls `before_step` before every step of these optimizers until it is closed."""

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
    """The version counters of tensors, by which torch counts in-place changes.

    Changes through `.data`, by code outside torch, by fused optimizers, and of DTensors by
    `torch._foreach_*` are not counted. torch counts a change once it is made, so an operation that
    is still running in another thread is not detected.
    """

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """
        Args:
            tensors: name and tensor, each of which `is_counted`.
        """
        pairs = list(tensors)
        # the local tensor of a DTensor has its own counter
        pairs += [(name, held_tensor(one)) for name, one in pairs if is_dtensor(one)]
        self._names = [name for name, _ in pairs]
        self._tensors = [one for _, one in pairs]
        self._versions = versions_of(self._tensors)

    def changed(self) -> list[str]:
        """Returns the names of the tensors that were written to since then."""
        now = versions_of(self._tensors)
        if now == self._versions:
            return []
        rows = zip(self._names, self._versions, now, strict=True)
        return list(dict.fromkeys(name for name, before, after in rows if after != before))


def is_counted(tensor: Tensor) -> bool:
    """Whether torch counts changes of the tensor; it does not for inference tensors."""
    if tensor.is_inference():
        return False
    return not (is_dtensor(tensor) and held_tensor(tensor).is_inference())
