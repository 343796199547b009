"""Exports only the adapters, in the format of the package peft."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpointing.errors import FormatError
from checkpointing.interop.atomic_files import new_files
from checkpointing.interop.safetensors.model_files import export_safetensors
from checkpointing.interop.tensor_forms import TensorForm
from checkpointing.store.checkpoint import Checkpoint
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.cli.model_export.huggingface_export import model_of
from hpckit.config.model_layers import adapted
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import DecoderSpec, GptSpec, LoraSpec, RunSpec
from hpckit.trainer.models.huggingface_names import forms

_CONFIG, _STEM = "adapter_config.json", "adapter_model"
_NO_END = sys.maxsize  # they are written as one file


def export_peft(
    checkpoint: Checkpoint,
    place: str,
    folder: Path,
    item: str,
    on_bytes: Callable[[int], None],
) -> list[Path]:
    """Write the adapters and their config, and return the files.

    Raises:
        CommandUsageError: the run trains no adapters, or its model is not one of hpckit's own.
    """
    spec = model_of(place)
    if spec.lora is None:
        raise CommandUsageError(
            f"{place} trains no adapters (lora=none); --format huggingface exports its model"
        )
    file = folder / _CONFIG
    if file.exists():
        raise FileExistsError(f"{file} already exists: choose another folder")
    layers = _layers(decoder_of(spec), spec.lora)
    found = _forms(layers, item)
    try:
        paths = export_safetensors(
            checkpoint,
            folder,
            items=[item],
            forms=found,
            left_out=checkpoint.tensors([item]).keys() - found.keys(),
            stem=_STEM,
            max_shard_bytes=_NO_END,
            on_bytes=on_bytes,
        )
    except FormatError as error:
        raise CommandUsageError(
            f"these are not the adapters that {place} describes: {error}"
        ) from error
    with new_files([file]) as (output,):
        output.write_at(0, json.dumps(_config(spec, spec.lora, layers), indent=2).encode() + b"\n")
    return [*paths, file]


def _layers(size: DecoderSpec, lora: LoraSpec) -> dict[str, TensorForm]:
    """Return how the weights of layers with adapters are written, by their names here."""
    known = forms(size, "model")
    return {
        (name := f"blocks.{number}.{layer}"): known[f"model/{name}.weight"]
        for number in range(size.layers)
        for layer in adapted(size, lora)
    }


def _forms(layers: dict[str, TensorForm], item: str) -> dict[str, TensorForm]:
    """Return the forms: A has the layer's inputs, whose order is the same there; B its outputs."""
    found = {}
    for name, form in layers.items():
        there = f"base_model.model.{form.name.removesuffix('.weight')}"
        found[f"{item}/{name}.lora_a"] = TensorForm(f"{there}.lora_A.weight")
        found[f"{item}/{name}.lora_b"] = TensorForm(f"{there}.lora_B.weight", form.regrouped)
    return found


def _config(spec: RunSpec, lora: LoraSpec, layers: dict[str, TensorForm]) -> dict[str, Any]:
    start = spec.init_from
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": start.path if start and start.kind == "huggingface" else None,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({_module(form.name) for form in layers.values()}),
        "fan_in_fan_out": isinstance(decoder_of(spec), GptSpec),  # of transformers' Conv1D
        "inference_mode": True,
    }


def _module(weight: str) -> str:
    """Return the last part of a weight's name: attn.c_attn for
    transformer.h.0.attn.c_attn.weight."""
    return ".".join(weight.split(".")[-3:-1])
