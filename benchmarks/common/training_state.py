"""A state like that of a transformer in training with AdamW, of any size, made in a moment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_POOL = 1 << 22  # numbers drawn; every step takes them from another place


def layer(width: int) -> dict[str, tuple[int, ...]]:
    """Returns the parameters of one block."""
    return {
        "qkv.weight": (3 * width, width),
        "out.weight": (width, width),
        "mlp_in.weight": (4 * width, width),
        "mlp_out.weight": (width, 4 * width),
        "norm.weight": (width,),
    }


class TrainingState:
    """Weights, first and second moments in float32: distributed as in training, and changed by
    every step as by ten steps of training at a learning rate of 1e-4."""

    def __init__(self, size: int, width: int = 2048, seed: int = 0) -> None:
        """
        Args:
            size: bytes, at least; in whole blocks.
            width: of the blocks: 2048 is that of models of 1.3 billion parameters.
        """
        self._rng = np.random.default_rng(seed)
        self._pool = self._rng.standard_normal(_POOL, np.float32)
        self.arrays: dict[str, Floats] = {}
        number = 0
        while self.nbytes < size:
            for name, shape in layer(width).items():
                self._add(f"blocks.{number}.{name}", shape)
            number += 1

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def step(self) -> None:
        """Changes every number."""
        for name, array in self.arrays.items():
            for part in np.array_split(array.reshape(-1), -(-array.size // _POOL)):
                _change(name, part, self._noise(part.size))

    def _add(self, name: str, shape: tuple[int, ...]) -> None:
        full = f"optimizer/state.{name}"
        self.arrays[f"model/{name}"] = self._normal(shape, 0.02)
        self.arrays[f"{full}.exp_avg"] = self._normal(shape, 1e-4)
        self.arrays[f"{full}.exp_avg_sq"] = np.exp(self._normal(shape, 1.0)) * np.float32(1e-8)

    def _normal(self, shape: tuple[int, ...], scale: float) -> Floats:
        return self._rng.standard_normal(shape, np.float32) * np.float32(scale)

    def _noise(self, size: int) -> Floats:
        start = int(self._rng.integers(_POOL))
        return np.concatenate([self._pool[start:], self._pool[:start]])[:size]


def _change(name: str, part: Floats, noise: Floats) -> None:
    if name.endswith("exp_avg_sq"):
        part *= 0.6
        part += 0.4e-8 * noise * noise
    elif name.endswith("exp_avg"):
        part *= 0.35
        part += 0.9e-4 * noise
    else:
        part += 1e-3 * 0.02 * noise
