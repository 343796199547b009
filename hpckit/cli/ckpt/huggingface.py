"""Exporting one of hpckit's own models so that Hugging Face's transformers loads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing.errors import FormatError
from checkpointing.interop.files import new_files
from checkpointing.interop.safetensors import export_safetensors
from checkpointing.runs import local_folder
from checkpointing.store.checkpoint import Checkpoint
from hpckit.cli.ckpt.failures import RefusedError
from hpckit.run.directory import RunDir
from hpckit.run.entries import LANGUAGE_MODEL
from hpckit.run.expertcheck import experts_of
from hpckit.run.modelcheck import decoder_of
from hpckit.run.parse import SpecError, read_spec
from hpckit.run.spec import RunSpec
from hpckit.training.models.huggingface import config, forms

if TYPE_CHECKING:
    from hpckit.cli.ckpt.merging import Merging


def export_huggingface(
    checkpoint: Checkpoint,
    place: str,
    folder: Path,
    item: str,
    shard_bytes: int,
    on_bytes: Callable[[int], None],
) -> list[Path]:
    """Write the weights and what describes them; the files. Adapters are added to what they adapt.

    Raises:
        RefusedError: the model is not known here.
    """
    spec = model_of(place)
    size, merging = decoder_of(spec), _merging(checkpoint, item, spec)
    item = "model" if merging else item  # an average of adapters has nothing else
    file = folder / "config.json"
    if file.exists():
        raise FileExistsError(f"{file} is there already: choose another folder")
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
        raise RefusedError(f"not a model as {place} describes it: {error}") from error
    dtypes = {spec.dtype for spec in checkpoint.tensors([item]).values()}
    with new_files([file]) as (output,):
        output.write_at(0, json.dumps(config(size, dtypes.pop()), indent=2).encode() + b"\n")
    return [*paths, file]


def _merging(checkpoint: Checkpoint, item: str, spec: RunSpec) -> Merging | None:
    if spec.lora is None:
        return None
    from hpckit.cli.ckpt.merging import Merging  # torch, which takes seconds

    return Merging(checkpoint, item, spec.lora)


def model_of(place: str) -> RunSpec:
    """The spec of a run directory.

    Raises:
        RefusedError: it is none, or not of a model of hpckit's.
    """
    folder = local_folder(place)
    numbers = RunDir(folder).submission_numbers() if folder is not None else []
    if folder is None or not numbers:
        raise RefusedError(
            f"{place} is no run directory, and a store does not know which model it holds: "
            "give the directory of the run"
        )
    try:
        spec = read_spec(RunDir(folder).spec(numbers[-1]))
    except (SpecError, OSError) as error:
        raise RefusedError(f"{place}: which model it trains cannot be read: {error}") from None
    if spec.entry != LANGUAGE_MODEL:
        raise RefusedError(
            f"{place} trains a model of its own ({spec.entry}); --format safetensors exports "
            "its tensors by their names"
        )
    if experts_of(spec.model) is not None:
        raise RefusedError(
            f"{place} trains a model with experts (model.experts), which transformers knows no "
            "architecture for; --format safetensors exports its tensors by their names"
        )
    return spec
