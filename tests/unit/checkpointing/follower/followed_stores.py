"""Stores that are followed in the tests, and what a follower has made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkpointing.follower.follower import Follower
from checkpointing.format.object_keys import SaveId
from checkpointing.interop.safetensors.reader import SafetensorsReader
from checkpointing.store.store import Store
from checkpointing.store.write.part_writer import WriteOptions
from tests.unit.checkpointing.store import delta_stores
from tests.unit.checkpointing.store.delta_stores import DELTAS, PLAIN

Weights = Mapping[str, NDArray[np.float32]]
RUN = "r"


def weights(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """A model of two tensors, of which one has several chunks, and an optimizer."""
    rng = np.random.default_rng(seed)
    return {
        "model/big": rng.standard_normal((300, 400)).astype(np.float32),
        "model/small": rng.standard_normal(50).astype(np.float32),
        "optimizer/state": rng.standard_normal(30).astype(np.float32),
    }


def changed(before: Weights, row: int) -> dict[str, NDArray[np.float32]]:
    """The same with one row that differs."""
    big = before["model/big"].copy()
    big[row] += 1
    return {**before, "model/big": big}


def save(
    store: Store, step: int, tensors: Weights, options: WriteOptions = PLAIN, run: str = RUN
) -> SaveId:
    return delta_stores.save(store, run, step, tensors, options)


def save_steps(store: Store, last: int, options: WriteOptions = DELTAS) -> list[Weights]:
    """Save steps 1 to `last`; their tensors."""
    made: list[Weights] = []
    for step in range(1, last + 1):
        made.append(changed(made[-1], step) if made else weights())
        save(store, step, made[-1], options)
    return made


def written(folder: Path, name: str = "latest.safetensors") -> dict[str, bytes]:
    """The tensors in a file that a follower has written."""
    with SafetensorsReader((folder / name).resolve()) as reader:
        return {
            n: reader.read(n, _whole(entry.shape)).tobytes() for n, entry in reader.tensors.items()
        }


def expected(tensors: Weights) -> dict[str, bytes]:
    """The tensors of the model, as a follower names them."""
    return {
        name.removeprefix("model/"): array.tobytes()
        for name, array in tensors.items()
        if name.startswith("model/")
    }


class SeenSteps:
    """A callback that keeps what it was given."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.tensors: list[dict[str, bytes]] = []
        self.changed: list[Sequence[str]] = []

    def __call__(
        self, step: int, tensors: Mapping[str, torch.Tensor], changed_names: Sequence[str]
    ) -> None:
        self.steps.append(step)
        self.tensors.append({n: bits(t) for n, t in tensors.items()})
        self.changed.append(changed_names)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def follower(store: Store, into: Any, **options: Any) -> Follower:
    return Follower(store.url, run=RUN, into=into, **{"interval_s": 0.01, **options})


def _whole(shape: tuple[int, ...]) -> Any:
    from checkpointing.format.tiles import whole

    return whole(shape)
