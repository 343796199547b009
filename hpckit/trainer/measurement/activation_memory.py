"""Measures the memory that each layer keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from hpckit.trainer.measurement.cost_report import LayerMemory

_DEPTH = 2
"""Number of parts of a layer's name: what lies deeper counts for it."""
_OUTSIDE = "outside of layers"


class ActivationMemory:
    """Adds up the tensors that the first forward pass in a block keeps for the backward pass, by
    layer. Parameters and buffers do not count, and memory that two layers keep counts for the first
    one. On any device."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        """`modules`: by name; the names of their layers begin with these, unless there is only
        one."""
        self._names = dict(_layer_names(modules))
        self._open: list[nn.Module] = []
        self._bytes: dict[str, int] = {}
        self._kinds: dict[str, str] = {}
        self._seen: set[int] = set()
        """Addresses of memory that was counted already, or that need not be."""
        self._is_backward = False

    @property
    def layers(self) -> tuple[LayerMemory, ...]:
        """The layers in the order of the forward pass; those that keep nothing are left out."""
        return tuple(
            LayerMemory(name, self._kinds.get(name, ""), size)
            for name, size in self._bytes.items()
            if size
        )

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the forward pass that begins in this block."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            with saved_tensors_hooks(self._keep, self._use):
                yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._open.append(module)
        for own in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if type(own) in (Tensor, nn.Parameter):
                self._seen.add(own.untyped_storage().data_ptr())
        name, kind = self._names.get(module, (None, ""))
        if name is not None:
            self._bytes.setdefault(name, 0)
            self._kinds.setdefault(name, kind)

    def _leave(self, module: nn.Module, _: Any, __: Any) -> None:
        if self._open and self._open[-1] is module:
            self._open.pop()

    def _keep(self, tensor: Tensor) -> Tensor:
        if self._is_backward or type(tensor) not in (Tensor, nn.Parameter):
            return tensor
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            name = self._here()
            self._bytes[name] = self._bytes.get(name, 0) + storage.nbytes()
        return tensor

    def _use(self, tensor: Tensor) -> Tensor:
        self._is_backward = True  # freed memory may be used again, and get the same address
        return tensor

    def _here(self) -> str:
        """Return the name of the innermost layer that runs."""
        named = (self._names[module][0] for module in reversed(self._open) if module in self._names)
        return next(named, _OUTSIDE)


def _layer_names(modules: Mapping[str, nn.Module]) -> Iterator[tuple[nn.Module, tuple[str, str]]]:
    for own, module in modules.items():
        for name, inner in module.named_modules():
            parts = name.split(".") if name else []
            above = [own] if len(modules) > 1 or not parts else []
            short = ".".join([*above, *parts[:_DEPTH]])
            kind = type(module.get_submodule(".".join(parts[:_DEPTH]))).__name__
            yield inner, (short, kind)
