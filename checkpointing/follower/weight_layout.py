"""Selects the tensors that are followed, and lays them out in a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from checkpointing.errors import StructureError
from checkpointing.follower.dtype_casts import dtype_after
from checkpointing.format.item_table import TensorSpec
from checkpointing.interop.safetensors.model_files import plan
from checkpointing.interop.tensor_names import dotted, items_of
from checkpointing.store.checkpoint import Checkpoint

MODEL = "model"
_ANY_SIZE = 1 << 62  # bytes: all tensors are in one file


@dataclass(frozen=True)
class WeightLayout:
    """The places of tensors in a file of the safetensors format.

    Attributes:
        stored: the tensors as the checkpoint has them, by full name.
        tensors: the same with the dtype that they have in the file.
        names: their names in the file: without the item, if all are of one.
        header: the first bytes of the file.
        starts: the first byte of each tensor in the file, by full name.
    """

    stored: Mapping[str, TensorSpec]
    tensors: Mapping[str, TensorSpec]
    names: Mapping[str, str]
    header: bytes
    starts: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(spec.bytes for spec in self.tensors.values())

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return len(self.header) + self.bytes

    @property
    def is_cast(self) -> bool:
        return self.stored != self.tensors


def lay_out(stored: Mapping[str, TensorSpec], dtype: str | None = None) -> WeightLayout:
    """Return the layout of these tensors.

    Args:
        dtype: what floating-point tensors are cast to; None: they keep their dtype.

    Raises:
        FormatError: safetensors does not have a dtype, or two tensors would have one name.
    """
    tensors = {n: replace(s, dtype=dtype_after(s.dtype, dtype)) for n, s in stored.items()}
    owners = items_of(stored)
    names = dotted(stored, without=owners if len(owners) == 1 else ())
    (file,) = plan(tensors, names, _ANY_SIZE)
    return WeightLayout(dict(stored), tensors, names, file.header, file.starts)


def select_tensors(checkpoint: Checkpoint, patterns: Sequence[str]) -> dict[str, TensorSpec]:
    """Return the tensors to follow, by full name. Reads only the tables of items that may match.

    Args:
        patterns: `fnmatch` patterns of full names, such as "model/*"; without any, all tensors of
            the item "model".

    Raises:
        StructureError: nothing matches.
    """
    items = checkpoint.items
    if not patterns:
        found = checkpoint.tensors([MODEL]) if MODEL in items else {}
        if not found:
            raise StructureError(
                f"{checkpoint.id} has no tensors in an item {MODEL!r}: choose tensors by names, "
                f"such as '{items[0] if items else 'ITEM'}/*'; its items are {', '.join(items)}"
            )
        return found
    chosen = [item for item in items if any(_may_match(item, each) for each in patterns)]
    found = {
        name: spec
        for name, spec in checkpoint.tensors(chosen).items()
        if any(fnmatchcase(name, each) for each in patterns)
    }
    if not found:
        raise StructureError(
            f"{checkpoint.id} has no tensor that matches {' or '.join(map(repr, patterns))}; its "
            f"items are {', '.join(items)}, and a pattern is of the full name, as in 'model/*'"
        )
    return found


def _may_match(item: str, pattern: str) -> bool:
    head, slash, _ = pattern.partition("/")
    return not slash or "*" in head or fnmatchcase(item, head)
