"""Pictures that can be told apart, and shards of them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from data import ShardWriter
from hpckit.trainer.batches.labelled_images import Pixels

CLASSES = 4


def picture(number: int, side: int) -> bytes:
    """PNG of noise in one of `CLASSES` colours: that of `number` modulo as many."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 128, (side, side, 3), dtype=np.uint8)
    colours = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]], np.uint8)
    return encoded(pixels + 127 * colours[number % CLASSES], "png")


def encoded(pixels: Pixels, kind: str) -> bytes:
    """`pixels`: (height, width, 3), as a file of this ending."""
    made = io.BytesIO()
    Image.fromarray(pixels).save(made, {"jpg": "jpeg"}.get(kind, kind), quality=95)
    return made.getvalue()


def write_pictures(folder: Path, samples: int, side: int = 40, per_shard: int = 16) -> Path:
    """Shards of so many pictures, with the numbers of their colours as labels; `folder`."""
    with ShardWriter(folder / "shard-%06d.tar", max_samples=per_shard) as writer:
        for number in range(samples):
            label = str(number % CLASSES)
            writer.write({"__key__": f"{number:04d}", "png": picture(number, side), "cls": label})
    return folder
