"""Merges adapters into the layers that they belong to, during an export."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpointing.format.tiles import Box
from checkpointing.format.torch_dtypes import as_array
from checkpointing.store.checkpoint import Checkpoint
from hpckit.config.spec import LoraSpec
from hpckit.trainer.models.decoder import LORA_A, LORA_B
from hpckit.trainer.models.lora import is_adapter, merged


class MergedAdapters:
    """The adapters in `item` of a checkpoint, which fit into memory."""

    def __init__(self, checkpoint: Checkpoint, item: str, lora: LoraSpec) -> None:
        found = checkpoint.tensors([item])
        self._lora = lora
        self._adapters = {
            name.removeprefix(f"{item}/"): _tensor(checkpoint.read(name), spec.dtype)
            for name, spec in found.items()
            if is_adapter(name)
        }
        self._dtypes = {name: spec.dtype for name, spec in checkpoint.tensors(["model"]).items()}

    @property
    def names(self) -> set[str]:
        """The names of the tensors in `model` that the export omits, as they are merged."""
        return {f"model/{name}" for name in self._adapters}

    def __call__(self, name: str, box: Box, cells: NDArray[Any]) -> NDArray[Any]:
        """Return the merged elements of a box of a tensor, as raw bytes."""
        layer = name.removeprefix("model/").removesuffix("weight")
        if (a := self._adapters.get(f"{layer}{LORA_A}")) is None or not name.endswith(".weight"):
            return cells
        rows, columns = box.slices[:2]
        b = self._adapters[f"{layer}{LORA_B}"]
        weight = _tensor(cells, self._dtypes[name])
        return as_array(merged(weight, a[:, columns], b[rows], self._lora))


def _tensor(cells: NDArray[Any], dtype: str) -> Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    return torch.from_numpy(cells.copy()).view(kind)
