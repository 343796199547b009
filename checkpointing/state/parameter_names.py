"""The full names of a module's parameters and buffers, without those of torch's wrappers."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from checkpointing.torch_internals import BatchNormBase, names_of_buffers

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Attributes under which torch wraps a module (compile, recompute, FSDP) and that are left out of
names."""


def parameter_names(module: nn.Module) -> dict[Tensor, str]:
    """Returns the full name of each parameter, the first one of a tied parameter, without the names
    of wrappers."""
    found: dict[Tensor, str] = {}
    for prefix, one in _modules(module, ""):
        for name, parameter in one._parameters.items():
            if parameter is not None:
                found.setdefault(parameter, f"{prefix}{name}")
    return found


def wrapper_prefix(module: nn.Module) -> str:
    """Returns the beginning of all names in a module's state_dict() that is of wrappers of the
    whole module, such as "_orig_mod.module."."""
    prefix = ""
    while True:
        name = "module" if isinstance(module, DistributedDataParallel) else "_orig_mod"
        wrapped = module._modules.get(name)
        if wrapped is None:
            return prefix
        module, prefix = wrapped, f"{prefix}{name}."


def without_wrappers(name: str, prefix: str) -> str:
    """Returns a full name without the names of wrappers, except those of
    DistributedDataParallel below the given `wrapper_prefix`."""
    return ".".join(one for one in name.removeprefix(prefix).split(".") if one not in _WRAPPERS)


def buffer_names(module: nn.Module) -> dict[str, bool]:
    """Returns the full names of all buffers, without those of wrappers, and whether each replica of
    the module computes its own from its samples: the running moments of normalisations over a
    batch, except those that average over the ranks."""
    return {
        f"{prefix}{name}": isinstance(one, BatchNormBase) and not isinstance(one, nn.SyncBatchNorm)
        for prefix, one in _modules(module, "")
        for name in names_of_buffers(one)
    }


def _modules(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yields all modules, each with the prefix of its names."""
    yield prefix, module
    for name, child in module._modules.items():
        if child is None:
            continue
        is_wrapped = name in _WRAPPERS or (
            name == "module" and isinstance(module, DistributedDataParallel)
        )
        yield from _modules(child, prefix if is_wrapped else f"{prefix}{name}.")
