"""Fingerprints of the gradients of one micro-batch, which are taken and freed one after the other
during the backward pass, so that they need no memory and no collective reduces them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from checkpointing.staging.fingerprints import device_fingerprint, fingerprint
from hpckit.torch_internals import awaited
from hpckit.trainer.parallel.local_tensor import local

_PIECE = 1 << 22  # elements that are converted at a time
_ROW = 1 << 12
_SIGNED = 1 << 63


@dataclass(frozen=True)
class CapturedGradients:
    """What is kept of the gradients of one micro-batch."""

    fingerprints: Tensor
    """int64[parameters], on the CPU; 0 where there was no gradient."""
    figures: Tensor
    """float64[parameters, 2], on the CPU: the norm of each gradient and a projection of it, which
    are compared where equal computations give slightly different results."""
    count: int
    """Number of parameters that got a gradient, which may be 0 everywhere."""

    @property
    def digest(self) -> int:
        """A hash of all fingerprints, which fits into an int64."""
        content = self.fingerprints.numpy().tobytes()
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), signed=True)


class GradientCapture:
    """Takes the fingerprints of the gradients of some modules."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        """Find the parameters that have gradients. Collective if there are FSDP2 modules, whose
        parameters are gathered one module after the other."""
        self._modules = tuple(modules.values())
        found: dict[str, nn.Parameter] = {}
        for name, module in modules.items():
            found |= dict(_parameters(name, module))
        by_id = {id(one): (name, one) for name, one in reversed(found.items()) if one.requires_grad}
        self._parameters = dict(reversed(by_id.values()))

    @property
    def names(self) -> list[str]:
        """The names of the parameters, in the order of the fingerprints."""
        return list(self._parameters)

    def take(self, compute: Callable[[], object]) -> CapturedGradients:
        """Call `compute`, which computes gradients, and return what is kept of them. The gradients
        that parameters have now are theirs again afterwards, and the same holds for buffers."""
        taken: dict[int, list[tuple[Tensor | int, Tensor]]] = {}
        parameters = list(self._parameters.values())
        held = [parameter.grad for parameter in parameters]
        with ExitStack() as undo:
            undo.enter_context(kept_buffers(self._modules))
            for module in (part for one in self._modules for part in one.modules()):
                if isinstance(module, DistributedDataParallel):  # also within a compiled module
                    undo.enter_context(module.no_sync())
                    undo.enter_context(_synced_buffers(module))
            for number, parameter in enumerate(parameters):
                parameter.grad = None
                undo.callback(partial(setattr, parameter, "grad", held[number]))
                hook = partial(_take, taken.setdefault(number, []))
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                undo.callback(handle.remove)
            compute()
        return CapturedGradients(
            torch.tensor([_combined(taken[n]) for n in range(len(parameters))], dtype=torch.int64),
            torch.stack([_sum_of_figures(taken[n]) for n in range(len(parameters))])
            if parameters
            else torch.zeros(0, 2, dtype=torch.float64),
            sum(1 for of_one in taken.values() if of_one),
        )


def lack_of_capture(modules: Iterable[nn.Module]) -> str | None:
    """Return why gradients of single micro-batches cannot be compared; None if they can be."""
    for module in (part for one in modules for part in one.modules()):
        if isinstance(module, nn.SyncBatchNorm):
            return "SyncBatchNorm computes with the micro-batches of all ranks"
        if isinstance(module, FullyShardedDataParallel):
            return "FSDP1 reduces the gradients of all parameters together; use fully_shard"
    return None


@contextmanager
def kept_buffers(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Give the buffers of `modules`, such as running moments, their present values again at the end
    of the block."""
    buffers = [buffer for module in modules for buffer in module.buffers()]
    copies = [buffer.detach().clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, copy in zip(buffers, copies, strict=True):
                buffer.copy_(copy)


@contextmanager
def _synced_buffers(module: DistributedDataParallel) -> Iterator[None]:
    """Let each computation begin with the buffers of rank 0, if the module is configured to send
    them. `no_sync` would leave that out after the first computation and, by the setting that is
    restored here, before the next training step."""
    was_synced = module.require_forward_param_sync
    module.require_forward_param_sync = True
    try:
        yield
    finally:
        module.require_forward_param_sync = was_synced


def figures(gradient: Tensor) -> Tensor:
    """Return the norm of a gradient and its projection on a vector of ones with varying signs:
    float64[2]."""
    flat = gradient.detach().reshape(-1)
    found = torch.zeros(2, dtype=torch.float64, device=flat.device)
    for number, start in enumerate(range(0, flat.numel(), _PIECE)):
        piece = flat[start : start + _PIECE].float()
        rows = nn.functional.pad(piece, (0, -piece.numel() % _ROW)).view(-1, _ROW)
        sums = (rows @ _signs(_ROW, flat.device)).double()
        projection = (sums * _signs(len(sums), flat.device)).sum()
        found += torch.stack(
            (piece.double().square().sum(), -projection if number % 2 else projection)
        )
    return torch.stack((found[0].sqrt(), found[1]))


def _parameters(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of `module` as its forward pass has them. Those of FSDP2 are not those
    that are saved: each module has others while it is gathered, always the same ones."""
    units: set[nn.Module] = {part for part in module.modules() if isinstance(part, FSDPModule)}
    if not units:
        yield from module.named_parameters(name)
        return
    names = {part: path for path, part in module.named_modules(prefix=name)}
    for part, path in names.items():
        if part not in units:
            continue
        gathered: Any = part  # an FSDPModule, which torch does not declare as a module
        gathered.unshard()
        yield from _own_parameters(path, part, units)
        gathered.reshard()
    if module not in units:
        yield from _own_parameters(name, module, units)


def _own_parameters(
    path: str, unit: nn.Module, units: set[nn.Module]
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of `unit` that belong to no other of the `units` within it."""
    for name, parameter in unit.named_parameters(path, recurse=False):
        yield name, parameter
    for name, child in unit.named_children():
        if child not in units:
            yield from _own_parameters(f"{path}.{name}", child, units)


def _take(into: list[tuple[Tensor | int, Tensor]], parameter: Tensor) -> None:
    gradient = parameter.grad
    assert gradient is not None
    cells = awaited(local(gradient))
    print_ = fingerprint([cells]) if cells.is_cpu else device_fingerprint(cells)
    into.append((print_, figures(cells)))
    parameter.grad = None  # so that FSDP2 finds nothing to reduce


def _combined(taken: list[tuple[Tensor | int, Tensor]]) -> int:
    """Return a fingerprint of all gradients that one parameter got, as a signed integer."""
    whole = 0
    for number, (one, _) in enumerate(taken):
        whole += int(one) * (2 * number + 1)
    return (whole + _SIGNED) % (2 * _SIGNED) - _SIGNED


def _sum_of_figures(taken: list[tuple[Tensor | int, Tensor]]) -> Tensor:
    return sum((one.cpu() for _, one in taken), torch.zeros(2, dtype=torch.float64))


@lru_cache(maxsize=32)
def _signs(count: int, device: torch.device) -> Tensor:
    """Return `count` numbers of which each is 1 or -1, always the same ones."""
    numbers = torch.arange(1, count + 1, dtype=torch.int64, device=device)
    mixed = (numbers * 0x9E3779B1) ^ (numbers * 0x85EBCA77 >> 13)
    found = ((mixed >> 17) & 1) * 2 - 1
    return found.to(torch.float32) if count == _ROW else found.to(torch.float64)
