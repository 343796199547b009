"""The state of a loader of another library: how it is taken, given back, and saved as plain
values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from checkpointing.format.torch_dtypes import dtype_name, torch_dtype
from hpckit.trainer.batches import energon_state

_METHODS = (
    ("state_dict", "load_state_dict"),
    ("get_state", "set_state"),
    ("save_state_rank", "restore_state_rank"),
)
"""Names of the methods that take and give back a state; the second pair is that of the iterators of
Grain, and the third that of the loaders of Megatron Energon."""
_TENSOR = "torch.Tensor"
_CONTAINERS = (dict, OrderedDict, list, tuple)


@dataclass(frozen=True)
class LoaderStateMethods:
    """The two methods of a loader for its state."""

    take: Callable[[], Any]
    """Returns the state after the batches that were delivered."""
    load: Callable[[Any], Any]
    """Has the next iteration continue at a state."""


def state_methods(loader: object) -> LoaderStateMethods | None:
    """Return the methods of a loader for its state; None if it has none."""
    for take, load in _METHODS:
        found = getattr(loader, take, None), getattr(loader, load, None)
        if all(map(callable, found)):
            return LoaderStateMethods(*found)  # type: ignore[arg-type]
    return None


def methods_of(loader: object) -> LoaderStateMethods:
    """Return the methods of a loader that is known to have a state."""
    found = state_methods(loader)
    assert found is not None
    return found


def epoch_setters(loader: object) -> list[Callable[[int], Any]]:
    """Return the methods `set_epoch` of a loader and of its parts, each of which chooses the order
    of an epoch by its number, as that of `DistributedSampler` does."""
    parts = {id(part): part for part in (loader, *parts_of(loader).values())}
    found = (getattr(part, "set_epoch", None) for part in parts.values())
    return [method for method in found if callable(method)]


def generators_of(loader: object) -> dict[str, torch.Generator]:
    """Return the generators of a loader and of its parts, by the names of these."""
    parts = {"loader": loader, **parts_of(loader)}
    found = {name: getattr(part, "generator", None) for name, part in parts.items()}
    return {name: one for name, one in found.items() if isinstance(one, torch.Generator)}


def parts_of(loader: object) -> dict[str, object]:
    """Return what a loader takes its samples from, by name: its sampler, batch sampler and
    dataset."""
    found = {name: getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")}
    found["batch_sampler.sampler"] = getattr(found["batch_sampler"], "sampler", None)
    return {name: part for name, part in found.items() if part is not None}


def packed(state: Any) -> Any:
    """Return a state with each tensor as plain values, which `unpacked` inverts.

    A checkpoint refuses a state whose tensors have other names than those in the program, and a
    loader that was not iterated yet may have none of them.
    """
    if isinstance(state, Tensor):
        cells = state.detach().cpu().contiguous()
        content = cells.reshape(-1).view(torch.uint8).numpy().tobytes()
        return (_TENSOR, dtype_name(cells.dtype), tuple(cells.shape), content)
    if (found := energon_state.parts_of_object(state)) is not None:
        mark, name, fields = found
        return (mark, name, _converted(fields, packed))
    return _converted(state, packed)


def unpacked(state: Any) -> Any:
    """Return the state that was given to `packed`."""
    if type(state) is tuple and len(state) == 4 and state[0] == _TENSOR:
        _, dtype, shape, content = state
        cells = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else None
        empty = torch.empty(shape, dtype=torch_dtype(dtype))
        return empty if cells is None else cells.view(empty.dtype).reshape(shape)
    if energon_state.is_object(state):
        return energon_state.made_object(state[1], _converted(state[2], unpacked))
    return _converted(state, unpacked)


def _converted(state: Any, convert: Callable[[Any], Any]) -> Any:
    """Return a container with all that is in it converted, and anything else as it is."""
    if type(state) not in _CONTAINERS:
        return state
    if isinstance(state, dict):
        return type(state)((key, convert(one)) for key, one in state.items())
    return type(state)(convert(one) for one in state)
