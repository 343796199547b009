"""Labelled images: decodes the members of a sample to pixels of one size, and stacks them to
batches."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from data import DataError, Sample, SampleContext

ENCODED = ("jpg", "jpeg", "png", "webp")
ARRAY = "npy"
"""Ending of members that are arrays of (height, width, 3) numbers of 8 bits, not encoded."""
LABEL = "cls"

LEAST_AREA = 0.08
MOST_SLANT = 4 / 3
"""Limits of a random crop: its share of the image, and its ratio of width to height (Szegedy et al.
2015)."""
MIDDLE = 0.875
"""Share of the shorter side that remains of an image without augmentation."""
_TRIES = 10

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


class LabelledImages(NamedTuple):
    """A sample, or a batch of samples."""

    pixels: Pixels
    """Pixels: (side, side, 3), of a batch (batch, side, side, 3)."""
    labels: Labels
    """Labels: (), of a batch (batch,)."""


@dataclass(frozen=True)
class ImageCrop:
    """A transform for `data.Loader` that crops an image and scales it to one size, with its label.

    A random crop depends on seed and position alone.
    """

    size: int
    """Length of a side in pixels."""
    classes: int
    augment: bool

    def __call__(self, sample: Sample, context: SampleContext) -> LabelledImages:
        """Return the cropped image with its label.

        Raises:
            DataError: the sample has not exactly one image, and a label below `classes`; or its
                image is broken.
        """
        label = _label(sample, self.classes)
        image = _image(sample)
        box = random_box(*image.size, context.rng) if self.augment else middle_box(*image.size)
        shape = (self.size, self.size)
        image = image.resize(shape, Image.Resampling.BILINEAR, box, reducing_gap=2.0)
        if self.augment and context.rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return LabelledImages(np.asarray(image), np.array(label))


def stack(samples: list[LabelledImages]) -> LabelledImages:
    """Stack samples of equal size to a batch."""
    return LabelledImages(
        np.stack([s.pixels for s in samples]), np.stack([s.labels for s in samples])
    )


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Return a box of random size and shape within an image; the middle box if none fits in some
    tries."""
    for _ in range(_TRIES):
        area = width * height * rng.uniform(LEAST_AREA, 1.0)
        slant = math.exp(rng.uniform(-math.log(MOST_SLANT), math.log(MOST_SLANT)))
        wide, high = math.sqrt(area * slant), math.sqrt(area / slant)
        if wide <= width and high <= height:
            left, top = rng.uniform(0, width - wide), rng.uniform(0, height - high)
            return left, top, min(left + wide, width), min(top + high, height)
    return middle_box(width, height)


def middle_box(width: int, height: int) -> Box:
    """Return the square in the middle of an image, without the margin."""
    half = MIDDLE * min(width, height) / 2
    return width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half


def _image(sample: Sample) -> Image.Image:
    names = [name for name in sample if name in (*ENCODED, ARRAY)]
    if len(names) != 1:
        raise _error(sample, f"has images {names}; it takes one of {', '.join((*ENCODED, ARRAY))}")
    content = sample[names[0]]
    assert isinstance(content, bytes)
    try:
        if names[0] == ARRAY:
            return Image.fromarray(_checked(np.load(io.BytesIO(content), allow_pickle=False)))
        return Image.open(io.BytesIO(content)).convert("RGB")
    except (OSError, EOFError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _error(sample, f"has a broken image {names[0]!r} ({error})") from error


def _checked(pixels: npt.NDArray[np.generic]) -> Pixels:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"needs uint8 (height, width, 3), got {pixels.dtype} {pixels.shape}")
    return pixels.astype(np.uint8, copy=False)


def _label(sample: Sample, classes: int) -> int:
    content = sample.get(LABEL)
    if not isinstance(content, bytes):
        raise _error(sample, f"has no label: a member {LABEL!r} with the number of its class")
    try:
        label = int(content)
    except ValueError:
        raise _error(sample, f"has a label {content[:20]!r} that is no number") from None
    if not 0 <= label < classes:
        raise _error(sample, f"has label {label}, and model.classes={classes} end before it")
    return label


def _error(sample: Sample, problem: str) -> DataError:
    return DataError(f"{sample['__url__']}: sample {sample['__key__']!r} {problem}")
