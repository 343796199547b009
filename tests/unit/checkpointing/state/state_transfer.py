"""A state that goes into another one, without a store between them."""

from __future__ import annotations

import json
from typing import Any

from checkpointing.errors import StructureError
from checkpointing.format.torch_dtypes import copy_bits, dtype_name
from checkpointing.format.values.branch_kinds import RECORD, branches_of
from checkpointing.state.item_adapters import to_save
from checkpointing.state.load_target import LoadTarget
from checkpointing.state.structure_comparison import Inventory, difference


def stored(state: dict[str, Any]) -> tuple[Inventory, dict[str, Any]]:
    """What a checkpoint of it has, and the tensors."""
    leaves = to_save(state)
    tensors = {name: tensor.detach().clone() for name, tensor in leaves.tensors.items()}
    specs = {name: (tuple(t.shape), dtype_name(t.dtype)) for name, t in tensors.items()}
    values = json.loads(json.dumps(leaves.values, sort_keys=True, allow_nan=False))
    branches = branches_of(values)
    return Inventory(specs, {n: v for n, v in values.items() if n != RECORD}, branches), tensors


def carry(saved: dict[str, Any], into: dict[str, Any], *, strict: bool = True) -> None:
    """As a save and a restore do it."""
    inventory, tensors = stored(saved)
    target = LoadTarget(into)
    target.form(inventory)
    text = difference([target.wants()], inventory)
    if text and strict:
        raise StructureError(text)
    for name, tensor in target.leaves.tensors.items():
        if name in tensors:
            copy_bits(tensor, tensors[name])
    target.finish(inventory)
