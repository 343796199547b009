"""The words of a comparison of two checkpoints. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from checkpointing.format.item_table import TensorSpec
from checkpointing.format.values.json_values import Json
from checkpointing.store.inspection.checkpoint_diff import Kind, TensorChange, TensorDiff
from hpckit.text.quantities import clean, count

WORDS: dict[Kind, str] = {
    "same": "unchanged",
    "changed": "changed",
    "only_a": "only in A",
    "only_b": "only in B",
    "other_shape": "other shape",
    "other_dtype": "other dtype",
    "damaged": "damaged",
}
VALUE_WIDTH = 60
"""Characters of a value in a table."""


def count_kinds(tensors: Sequence[TensorDiff]) -> str:
    """Return how many tensors there are of each kind."""
    kinds = Counter(tensor.kind for tensor in tensors)
    counts = ", ".join(f"{kinds[kind]:,} {word}" for kind, word in WORDS.items() if kinds[kind])
    return f"{count(len(tensors), 'tensor')}{': ' if counts else ''}{counts}"


def interest(diff: TensorDiff) -> tuple[int, float, str]:
    """Return a sort key for the order of the output: damaged tensors, tensors that cannot be
    compared, then the largest changes."""
    order: tuple[Kind, ...] = ("damaged", "only_a", "only_b", "other_dtype", "other_shape")
    rank = order.index(diff.kind) if diff.kind in order else len(order)
    if diff.kind == "same":
        rank += 1
    l2 = diff.change.relative_l2 if diff.change else None
    return rank, -(l2 if l2 is not None else 0.0), diff.name


def describe_kind(diff: TensorDiff) -> str:
    """Return what happened to a tensor."""
    if diff.kind == "other_shape" and diff.a and diff.b:
        return f"{_shape(diff.a)} -> {_shape(diff.b)}"
    if diff.kind == "other_dtype" and diff.a and diff.b:
        return f"{diff.a.dtype} -> {diff.b.dtype}"
    return WORDS[diff.kind]


def change_cells(change: TensorChange) -> tuple[str, str, str, str]:
    """Return the shares of chunks and elements that changed, the largest |B - A|, and |B - A| /
    |A|."""
    return (
        percent(change.chunks_changed, change.chunks),
        percent(change.elements_changed, change.elements),
        "" if change.max_abs is None else f"{change.max_abs:.4g}",
        "" if change.relative_l2 is None else f"{change.relative_l2:.4g}",
    )


def percent(part: int, whole: int) -> str:
    """Format a share so that it shows 0 % or 100 % only if it is exactly that."""
    if part in (0, whole):
        return "100%" if part else "0%"
    share = 100 * part / whole
    return "<0.01%" if share < 0.01 else ">99.99%" if share > 99.99 else f"{share:.4g}%"


def short(value: Json) -> str:
    """Format a value on one line, shortened if it is long."""
    text = clean(json.dumps(value))
    return text if len(text) <= VALUE_WIDTH else f"{text[: VALUE_WIDTH - 3]}..."


def _shape(spec: TensorSpec) -> str:
    return "x".join(map(str, spec.shape)) or "scalar"
