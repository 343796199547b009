"""All that a trainer has, by torch's own state dicts and the names of parameters: the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from checkpointing import PerRank
from tests.trainers.building import Loader, Trainer
from tests.trainers.nets import names_of

Contents = dict[str, Any]
"""By name: a tensor's copy, or what a value is written as."""
Groups = list[list[dict[str, Contents]]]
"""By optimizer and group: the options that each of its parameters has."""
WAYS = ("foreach", "fused", "capturable")
"""Options that are the program's and not the checkpoint's."""


def contents(trainer: Trainer, *, whole: bool = False) -> Contents:
    """What is to be saved and to come back.

    Args:
        whole: tensors whole, instead of this rank's shards and how they are spread. A collective.
    """
    found: Contents = {}
    names = names_of(trainer.net)
    for name, tensor in trainer.net.state_dict().items():
        write(tensor, f"model/{name}", found)
    for number, optimizer in enumerate(trainer.optimizers):
        kept = optimizer.state_dict()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for index, state in kept["state"].items():
            write(dict(state), f"optimizer{number}/{names[parameters[index]]}", found)
        for index, group in enumerate(kept["param_groups"]):
            options = {k: v for k, v in group.items() if k != "params" and k not in WAYS}
            for one in group["params"]:
                write(options, f"group{number}/{names[parameters[one]]}", found)
            if not group["params"]:
                write(options, f"empty{number}/{index}", found)
    for name, held in trainer.state.items():
        if name not in ("model", "optimizer", "optimizer.model"):
            write(_tree_of(held), name, found)
    if whole:
        pairs = sorted(found.items())  # in one order on all ranks
        return {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in pairs}
    return found


def everything(trainer: Trainer) -> Contents:
    """Also what no checkpoint has: gradients, buffers, ways, options of groups as they are."""
    found = contents(trainer)
    for name, buffer in trainer.net.named_buffers():
        write(buffer, f"buffer/{name}", found)
    for name, parameter in trainer.net.named_parameters():
        write(parameter.grad, f"gradient/{name}", found)
        found[f"is_trained/{name}"] = repr(parameter.requires_grad)
    for number, optimizer in enumerate(trainer.optimizers):
        for index, group in enumerate(optimizer.param_groups):
            write({k: v for k, v in group.items() if k != "params"}, f"g{number}/{index}", found)
    write(torch.get_rng_state(), "random", found)
    return found


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Names under which two contents are not the same, bit for bit; how DTensors are spread does
    not matter. A collective where it differs."""
    names = sorted(found.keys() ^ expected.keys())
    return [f"{n}: only {'there' if n in found else 'expected'}" for n in names] + [
        f"{name}: {_short(found[name])} instead of {_short(one)}"
        for name, one in sorted(expected.items())
        if name in found and not _same(found[name], one)
    ]


def but(found: Mapping[str, Any], starts: Iterable[str]) -> Contents:
    """Without what begins so."""
    left_out = tuple(starts)
    return {name: one for name, one in found.items() if not name.startswith(left_out)}


def moments_of(trainer: Trainer) -> list[str]:
    """Names of what ranks have of their own samples: the running moments of normalisations."""
    held: dict[str, nn.Module] = {"model": trainer.net}
    if trainer.average is not None:
        held["average"] = trainer.average
    return [
        f"{item}/{path}.{name}".replace("_checkpoint_wrapped_module.", "")
        for item, module in held.items()
        for path, one in module.named_modules()
        if isinstance(one, nn.BatchNorm1d)
        for name, _ in one.named_buffers()
    ]


_HAS_TENSORS = "tensors of group"
"""An option of groups that have tensors as options: those of two groups are taken to differ."""


def groups_of(trainer: Trainer) -> Groups:
    """What the groups of each optimizer are."""
    names = names_of(trainer.net)
    found: Groups = []
    for optimizer in trainer.optimizers:
        found.append([])
        for number, group in enumerate(optimizer.param_groups):
            options: Contents = {}
            write({k: v for k, v in group.items() if k not in ("params", *WAYS)}, "", options)
            if any(isinstance(option, Tensor) for option in group.values()):
                options[_HAS_TENSORS] = str(number)
            found[-1].append({names[parameter]: options for parameter in group["params"]})
    return found


def mixes_groups(saved: Groups, here: Groups) -> bool:
    """Whether parameters would take options that were not theirs: those with different ones are
    together here, or those of one group are in several whose options the program has chosen."""
    for before, groups in zip(saved, here, strict=True):
        was = {name: (n, one) for n, group in enumerate(before) for name, one in group.items()}
        for names in groups:
            told = [as_floats(was[name][1]) for name in names]
            if any(differences(told[0], one) for one in told):
                return True
        for first in groups:
            for second in groups:
                shared = {was[n][0] for n in first} & {was[n][0] for n in second}
                pair = [next(iter(one.values()), {}) for one in (first, second)]
                pair = [as_floats(but(one, (_HAS_TENSORS,))) for one in pair]
                if shared and differences(*pair):
                    return True
    return False


def _tree_of(held: Any) -> Any:
    inner = held.held if isinstance(held, PerRank) else held
    if isinstance(inner, Loader):
        return inner.place
    return inner.state_dict() if hasattr(inner, "state_dict") else inner


def write(value: Any, path: str, into: Contents) -> None:
    """Add the leaves of a tree, and what the tree is made of."""
    if isinstance(value, Tensor):
        into[path] = value.detach().clone()
    elif isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        into[f"{path} is"] = f"{type(value).__name__} of {len(value)}"
        for key, one in pairs:
            write(one, f"{path}/{key if type(key) is str else repr(key)}", into)
    else:
        into[path] = repr(value)


def as_floats(options: Contents) -> Contents:
    """A weight decay of 0 is one of 0.0."""
    whole = {n for n, one in options.items() if isinstance(one, str) and one.isdigit()}
    return {name: f"{one}.0" if name in whole else one for name, one in options.items()}


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:120]


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(type(one) is type(other) and one == other)
    if isinstance(one, DTensor) != isinstance(other, DTensor):
        return False
    if isinstance(one, DTensor) and isinstance(other, DTensor):
        if one.placements != other.placements:  # SGD's momentum is spread as a gradient was
            return _same(one.full_tensor(), other.full_tensor())
        return one.shape == other.shape and _same(one.to_local(), other.to_local())
    if one.dtype is not other.dtype or one.shape != other.shape:
        return False
    mine, theirs = (t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(mine, theirs)
