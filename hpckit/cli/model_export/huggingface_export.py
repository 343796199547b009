"""Exports one of hpckit's own models in the format of Hugging Face's transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing.errors import FormatError
from checkpointing.interop.atomic_files import new_files
from checkpointing.interop.safetensors.model_files import export_safetensors
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store_url import local_folder
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.config.entry_points import LANGUAGE_MODEL
from hpckit.config.rules.experts import experts_of
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError, read_spec
from hpckit.rundir.directory import RunDir
from hpckit.trainer.models.huggingface_names import config, forms

if TYPE_CHECKING:
    from hpckit.cli.model_export.merged_adapters import MergedAdapters


def export_huggingface(
    checkpoint: Checkpoint,
    place: str,
    folder: Path,
    item: str,
    shard_bytes: int,
    on_bytes: Callable[[int], None],
) -> list[Path]:
    """Write the weights and their config, and return the files. Adapters are merged.

    Raises:
        CommandUsageError: the model is not one of hpckit's own.
    """
    spec = model_of(place)
    size, merging = decoder_of(spec), _merging(checkpoint, item, spec)
    item = "model" if merging else item  # an average of adapters contains nothing else
    file = folder / "config.json"
    if file.exists():
        raise FileExistsError(f"{file} already exists: choose another folder")
    try:
        paths = export_safetensors(
            checkpoint,
            folder,
            items=[item],
            forms=forms(size, item),
            change=merging,
            left_out=merging.names if merging else (),
            max_shard_bytes=shard_bytes,
            on_bytes=on_bytes,
        )
    except FormatError as error:
        raise CommandUsageError(f"this is not the model that {place} describes: {error}") from error
    dtypes = {spec.dtype for spec in checkpoint.tensors([item]).values()}
    with new_files([file]) as (output,):
        output.write_at(0, json.dumps(config(size, dtypes.pop()), indent=2).encode() + b"\n")
    return [*paths, file]


def _merging(checkpoint: Checkpoint, item: str, spec: RunSpec) -> MergedAdapters | None:
    if spec.lora is None:
        return None
    from hpckit.cli.model_export.merged_adapters import MergedAdapters  # torch, which takes seconds

    return MergedAdapters(checkpoint, item, spec.lora)


def model_of(place: str) -> RunSpec:
    """Return the spec of a run directory.

    Raises:
        CommandUsageError: `place` is not a run directory, or its model is not one of hpckit's own.
    """
    folder = local_folder(place)
    numbers = RunDir(folder).submission_numbers() if folder is not None else []
    if folder is None or not numbers:
        raise CommandUsageError(
            f"{place} is not a run directory, and a store does not record which model it holds: "
            "give the directory of the run"
        )
    try:
        spec = read_spec(RunDir(folder).spec(numbers[-1]))
    except (SpecError, OSError) as error:
        raise CommandUsageError(
            f"{place}: the model that it trains cannot be read: {error}"
        ) from None
    if spec.entry != LANGUAGE_MODEL:
        raise CommandUsageError(
            f"{place} trains a model of its own ({spec.entry}); --format safetensors exports "
            "its tensors by their names"
        )
    if experts_of(spec.model) is not None:
        raise CommandUsageError(
            f"{place} trains a model with experts (model.experts), for which transformers has no "
            "architecture; --format safetensors exports its tensors by their names"
        )
    return spec
