"""Rules for validation, as pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.config.entry_points import is_built_in
from hpckit.config.spec import RunSpec

PREFIX = "val_"
"""Prefix of the names of validation metrics."""


def validation_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of these rules, one line each, the key first."""
    every, shards, best = spec.train.validate_every, spec.data.validation, spec.checkpoint.keep.best
    is_ours = is_built_in(spec)
    if is_ours and every is not None and shards is None:
        yield f"data.validation: is required when train.validate_every={every}"
    if is_ours and every is None and shards is not None:
        yield (
            "data.validation: is used only when train.validate_every has a value, and that is null"
        )
    if best is not None and best.startswith(PREFIX) and every is None:
        yield f"checkpoint.keep.best: {best} requires validation; set train.validate_every"
