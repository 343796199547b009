"""Checkpoints and tensors for the tests of others' formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpointing import Store
from checkpointing.format.element_types import element
from checkpointing.format.object_keys import SaveId
from checkpointing.format.values.json_values import encode
from checkpointing.interop.piece_import import save_pieces
from checkpointing.store.catalog import committed
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.inspection.integrity_check import verify
from checkpointing.store.write.part_writer import TensorPiece

COMMON = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "bool", "int16", "uint16"]
COMMON += ["int32", "uint32", "int64", "uint64", "complex64", "float8_e4m3fn", "float8_e5m2"]
COMMON += ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"]
TORCH_ONLY = ["complex32", "complex128"]
SHAPES = {"scalar": (), "none": (0, 4), "odd": (3, 5), "tiled": (300, 301), "cube": (3, 130, 260)}
VALUES = {"step": 7, "loss": float("nan"), "betas": (0.9, 0.95), "names": ["a", {"b": None}]}


def bits(dtype: str, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Any bits there are: NaNs of all kinds, -0.0, denormals; but bools that are bools."""
    kind = element(dtype)
    count = int(np.prod(shape)) * kind.itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, count, np.uint8)
    return np.frombuffer(raw.tobytes(), kind.bits).reshape(shape)


def piece(name: str, dtype: str, data: NDArray[Any]) -> TensorPiece:
    return TensorPiece(name, dtype, data.shape, (0,) * data.ndim, data)


def everything() -> list[TensorPiece]:
    found = []
    for i, dtype in enumerate([*COMMON, *TORCH_ONLY]):
        item = "odd" if dtype in TORCH_ONLY else "model"
        for j, (kind, shape) in enumerate(SHAPES.items()):
            if (dtype == "float4_e2m1fn_x2" and not shape) or (j > 2 and i % 3):
                continue
            name = f"{item}/layers.{i}.{kind}.{dtype}"
            found.append(piece(name, dtype, bits(dtype, shape, 10 * i + j)))
    return found


def everything_saved(folder: Path) -> Checkpoint:
    """A checkpoint with tensors of every dtype and many shapes, and values."""
    store = Store.open(folder / "store", create=True)
    values = {f"extra/{name}": encode(value, name) for name, value in VALUES.items()}
    return opened(store, save_pieces(store, "run", 7, everything(), values))


def opened(store: Store, save: SaveId) -> Checkpoint:
    found = next(f for f in committed(store, save.run)[0] if f.stored.save == save)
    assert verify(store, found) == []
    return Checkpoint(store, found.stored)


def contents(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        name: (spec.dtype, spec.shape, checkpoint.read(name).tobytes())
        for name, spec in checkpoint.tensors().items()
    }


def described(tensor: Tensor) -> tuple[str, tuple[int, ...], bytes]:
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw


def tensor_of(data: NDArray[Any], dtype: str) -> Tensor:
    raw = torch.from_numpy(np.frombuffer(bytearray(data.tobytes()), np.uint8))
    return raw.view(getattr(torch, dtype)).reshape(data.shape)


def flat(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, thing in tree.items():
        name = f"{path}/{key}" if path else key
        found |= flat(thing, name) if isinstance(thing, dict) else {name: thing}
    return found


def nested() -> dict[str, Any]:
    torch.manual_seed(3)
    return {
        "model": {"w.0": torch.randn(300, 400), "b": torch.randn(7).bfloat16()},
        "optim": {"state": [torch.randn(4), {"step": torch.tensor(3.0)}], "lr": 1e-3},
        "step": 12,
        "e": torch.empty(0, 3),
    }
