"""Exporting adapters alone, as the package peft and what loads its format take them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpointing.errors import FormatError
from checkpointing.interop.files import new_files
from checkpointing.interop.forms import Form
from checkpointing.interop.safetensors import export_safetensors
from checkpointing.store.checkpoint import Checkpoint
from hpckit.cli.ckpt.failures import RefusedError
from hpckit.cli.ckpt.huggingface import model_of
from hpckit.run.layers import adapted
from hpckit.run.modelcheck import decoder_of
from hpckit.run.spec import DecoderSpec, GptSpec, LoraSpec, RunSpec
from hpckit.training.models.huggingface import forms

_CONFIG, _STEM = "adapter_config.json", "adapter_model"
_NO_END = sys.maxsize  # they are one file, which nobody looks for parts of


def export_peft(
    checkpoint: Checkpoint,
    place: str,
    folder: Path,
    item: str,
    on_bytes: Callable[[int], None],
) -> list[Path]:
    """Write the adapters and what describes them; the files.

    Raises:
        RefusedError: the run trains none, or no model that is known here.
    """
    spec = model_of(place)
    if spec.lora is None:
        raise RefusedError(
            f"{place} trains no adapters (lora=none); --format huggingface exports its model"
        )
    file = folder / _CONFIG
    if file.exists():
        raise FileExistsError(f"{file} is there already: choose another folder")
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
        raise RefusedError(f"no adapters as {place} describes them: {error}") from error
    with new_files([file]) as (output,):
        output.write_at(0, json.dumps(_config(spec, spec.lora, layers), indent=2).encode() + b"\n")
    return [*paths, file]


def _layers(size: DecoderSpec, lora: LoraSpec) -> dict[str, Form]:
    """Those that have adapters, by their names here: how their weights are written."""
    known = forms(size, "model")
    return {
        (name := f"blocks.{number}.{layer}"): known[f"model/{name}.weight"]
        for number in range(size.layers)
        for layer in adapted(size, lora)
    }


def _forms(layers: dict[str, Form], item: str) -> dict[str, Form]:
    """A has the layer's inputs, whose order is the same there; B its outputs."""
    found = {}
    for name, form in layers.items():
        there = f"base_model.model.{form.name.removesuffix('.weight')}"
        found[f"{item}/{name}.lora_a"] = Form(f"{there}.lora_A.weight")
        found[f"{item}/{name}.lora_b"] = Form(f"{there}.lora_B.weight", form.regrouped)
    return found


def _config(spec: RunSpec, lora: LoraSpec, layers: dict[str, Form]) -> dict[str, Any]:
    start = spec.start
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
    """What its name ends with in each block: attn.c_attn of transformer.h.0.attn.c_attn.weight."""
    return ".".join(weight.split(".")[-3:-1])
