"""What parameters a run begins with, where these are not drawn."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Natural, Text


@dataclass(frozen=True, config=GROUP)
class StartSpec:
    """Trained parameters that a new run begins with (`conf/start/`); one that has a checkpoint of
    its own goes on from there, and never looks at these again."""

    kind: Literal["huggingface", "checkpoint"]
    """huggingface: a folder with config.json and safetensors files; checkpoint: of another run."""
    path: Text
    """That folder; or a run directory, or a run in a store, STORE/runs/RUN, also at URLs."""
    step: Natural | None
    """Of the checkpoint; null: the newest there is when the run begins. null for huggingface."""
    item: Literal["model", "ema"] | None
    """Of the checkpoint: the parameters, or their average; null for huggingface."""
