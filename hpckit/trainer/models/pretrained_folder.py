"""Reads a model in a folder of Hugging Face's transformers as one of `conf/model/`. This module
does not import torch."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.element_types import element
from checkpointing.format.tiles import Box, Shape
from checkpointing.interop.safetensors.reader import SafetensorsReader
from checkpointing.interop.tensor_forms import TensorForm
from hpckit.config.spec import DecoderSpec, LlamaSpec
from hpckit.trainer.models.huggingface_names import config, forms

_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 50257, "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024},
    "llama": {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False},
}
"""Values of missing keys in a config.json of transformers, where they differ from ours."""
_KEYS = {
    "vocab_size": "vocab",
    **{"n_layer": "layers", "n_head": "heads", "n_embd": "width", "n_positions": "seq_len"},
    **{"num_hidden_layers": "layers", "num_attention_heads": "heads", "hidden_size": "width"},
    **{"num_key_value_heads": "kv_heads", "intermediate_size": "hidden"},
    **{"rms_norm_eps": "norm_eps", "rope_theta": "rope_theta", "tie_word_embeddings": "tied"},
}
"""Fields of `model` by keys of config.json."""
_MAY_DIFFER = {"architectures", "max_position_embeddings", "rope_parameters", "dtype"}
"""Keys of `config` that may differ: positions of Llama, for example, are rotary and need no
maximum."""
_NO_PARAMETERS = re.compile(r".*\.(attn\.(masked_)?bias|rotary_emb\.inv_freq)")
"""Names of constants that older versions of transformers saved."""
_CONVERT = (
    "from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')"
)


def folder_problems(folder: Path, size: DecoderSpec) -> list[str]:
    """Return why the model in `folder` is not one of `size`, as far as the names and sizes in its
    files show; empty if it is one."""
    if not (folder / "config.json").is_file():
        return [f"{folder} has no config.json, so it is not a model of transformers"]
    if not any(folder.glob("*.safetensors*")):
        return [_no_safetensors(folder)]
    try:
        stated = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        return [f"{folder}/config.json is no JSON ({error})"]
    if found := list(differences(size, stated)):
        return [f"{folder}/config.json: {line}" for line in found]
    with PretrainedParameters(folder, size) as model:
        return [f"{folder}: {line}" for line in model.other_names()]


def differences(size: DecoderSpec, stated: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between a config.json and `size`, as text."""
    ours = config(size, "float32")
    kind = ours["model_type"]
    if stated.get("model_type") != kind:
        yield f"model_type is {stated.get('model_type')!r}, and model.kind={size.kind} is {kind!r}"
        return
    theirs = {**ours, **_DEFAULTS[kind], **_known(size, stated)}
    for name in ours.keys() - _MAY_DIFFER:
        if theirs[name] != ours[name]:
            mine = f"model.{_KEYS[name]}" if name in _KEYS else "a model of hpckit"
            yield f"{name} is {_shown(theirs[name])}, and {mine} has {_shown(ours[name])}"
    if isinstance(size, LlamaSpec) and (rope := _scaling(stated)):
        yield f"positions are scaled ({rope}), which models of hpckit do not support"
    head = stated.get("head_dim")
    if head is not None and head != size.width // size.heads:
        yield f"head_dim is {head}, and model.width / model.heads is {size.width // size.heads}"
    if (inner := stated.get("n_inner")) not in (None, 4 * size.width):
        yield f"n_inner is {inner}, and 4 x model.width is {4 * size.width}"


class PretrainedParameters:
    """The parameters in a folder, by their names in models of hpckit. It is a context manager."""

    def __init__(self, folder: Path, size: DecoderSpec) -> None:
        """Open the files in `folder`; raises as `SafetensorsReader`."""
        self._reader = SafetensorsReader(folder)
        self._forms = _forms(size)
        self._names = _names_in_folder(self._forms, self._reader.tensors)

    def other_names(self) -> Iterator[str]:
        """Yield the missing and the unknown names, as text."""
        for name, form in self._forms.items():
            if name not in self._names:
                yield f"has no {form.name}, which is {name} here"
        known = {*self._names.values()}
        if self._forms.get("output.weight") is None:
            known.add("lm_head.weight")  # the token embedding again
        for name in self._reader.tensors:
            if name not in known and not _NO_PARAMETERS.fullmatch(f".{name}"):
                yield f"has {name}, which this model does not have"

    def specs(self) -> dict[str, tuple[str, Shape]]:
        """Return the dtype and shape of each parameter in the form of hpckit."""
        found = {name: self._reader.tensors[there] for name, there in self._names.items()}
        return {n: (entry.dtype, self._forms[n].shape(entry.shape)) for n, entry in found.items()}

    def read(self, name: str, box: Box) -> NDArray[Any]:
        """Return the raw elements of a box of a parameter; raises as `SafetensorsReader.read`."""
        there = self._names[name]
        entry, form = self._reader.tensors[there], self._forms[name]
        cells = np.empty(box.sizes, element(entry.dtype).bits)
        for at, view in form.views(form.shape(entry.shape), box, cells):
            view[...] = self._reader.read(there, at)
        return cells

    def __enter__(self) -> PretrainedParameters:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.__exit__(None, None, None)


def _forms(size: DecoderSpec) -> dict[str, TensorForm]:
    return {name.removeprefix("model/"): form for name, form in forms(size, "model").items()}


def _names_in_folder(ours: Mapping[str, TensorForm], there: Collection[str]) -> dict[str, str]:
    """Return the names in the folder by our names. Files of a model without its output layer lack
    the prefix of the names, as those of the published GPT-2 do."""
    found = {}
    for name, form in ours.items():
        bare = form.name.partition(".")[2]
        if form.name in there:
            found[name] = form.name
        elif bare in there:
            found[name] = bare
    return found


def _known(size: DecoderSpec, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a config.json, with those added that follow from others."""
    known = dict(stated)
    if isinstance(size, LlamaSpec):
        known.setdefault("num_key_value_heads", stated.get("num_attention_heads"))
        parameters = stated.get("rope_parameters") or {}
        if "rope_theta" in parameters:
            known["rope_theta"] = parameters["rope_theta"]
    return known


def _scaling(stated: Mapping[str, Any]) -> str | None:
    for name in ("rope_scaling", "rope_parameters"):
        about = stated.get(name) or {}
        kind = about.get("rope_type", about.get("type", "default"))
        if kind != "default":
            return f"{name}: {kind}"
    return None


def _no_safetensors(folder: Path) -> str:
    pickles = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    if not pickles:
        return f"{folder} has no safetensors files"
    command = _CONVERT.format(folder=folder)
    return (
        f"{folder} has {pickles[0]} and no safetensors: pickles can run any code, and are never "
        f'read; if you trust them, convert them: python -c "{command}"'
    )


def _shown(value: Any) -> str:
    return json.dumps(value)
