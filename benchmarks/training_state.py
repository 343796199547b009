"""A state like that of a transformer in training with AdamW, of any size, made in a moment."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LAYER = {
    "qkv.weight": (3072, 1024),
    "out.weight": (1024, 1024),
    "mlp_in.weight": (4096, 1024),
    "mlp_out.weight": (1024, 4096),
    "norm.weight": (1024,),
}  # 12.6 M parameters: 151 MB of state
_POOL = 1 << 22  # numbers drawn; every step takes them from another place


class TrainingState:
    """Weights, first and second moments in float32: distributed as in training, and changed by
    every step as by ten steps of training at a learning rate of 1e-4."""

    def __init__(self, size: int, seed: int = 0) -> None:
        """
        Args:
            size: bytes, at least; in whole layers.
        """
        self._rng = np.random.default_rng(seed)
        self._pool = self._rng.standard_normal(_POOL, np.float32)
        layer = 3 * 4 * sum(int(np.prod(shape)) for shape in LAYER.values())
        self.arrays: dict[str, Floats] = {}
        for number in range(-(-size // layer)):
            for name, shape in LAYER.items():
                self._add(f"blocks.{number}.{name}", shape)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def step(self) -> None:
        """Change every number."""
        for name, array in self.arrays.items():
            for part in np.array_split(array.reshape(-1), -(-array.size // _POOL)):
                _change(name, part, self._noise(part.size))

    def _add(self, name: str, shape: tuple[int, ...]) -> None:
        size = int(np.prod(shape))
        scales: Iterator[tuple[str, float]] = iter(
            {
                f"model/{name}": 0.02,
                f"optimizer/state.{name}.exp_avg": 1e-4,
            }.items()
        )
        for full, scale in scales:
            self.arrays[full] = scale * self._rng.standard_normal(size, np.float32).reshape(shape)
        spread = self._rng.standard_normal(size, np.float32).reshape(shape)
        self.arrays[f"optimizer/state.{name}.exp_avg_sq"] = np.exp(spread) * np.float32(1e-8)

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
