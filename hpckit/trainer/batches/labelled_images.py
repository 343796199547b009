"""Labelled images, which are decoded from the members of a sample, scaled to one size and stacked
to batches."""

from __future__ import annotations

import io
import math
import operator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from data import DataError, Sample, SampleContext

ENCODED = ("jpg", "jpeg", "png", "webp")
"""Endings of members that are encoded images."""
ARRAY = "npy"
"""Ending of members that are arrays of uint8, (height, width, 3)."""
LABEL = "cls"
"""Ending of the member that has the number of the class."""
IMAGE_FIELD, LABEL_FIELD = "image", "label"
"""The fields of samples of other formats, where they have no such members."""

LEAST_AREA = 0.08
MOST_ASPECT_RATIO = 4 / 3
"""Limits of a random crop: the least share of the area of the image, and the largest ratio of width
to height or height to width (Szegedy et al. 2015)."""
CENTER_SHARE = 0.875
"""Side of the center crop of an image without augmentation, as a share of the shorter side."""
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
    """A transform for `data.Loader` that crops an image, scales it to one size and adds its label.

    A random crop depends only on the seed and the position.
    """

    size: int
    """Length of a side in pixels."""
    classes: int
    """Number of classes."""
    augment: bool
    """Whether the crop is random and may be flipped, instead of the center."""

    def __call__(self, sample: Sample, context: SampleContext) -> LabelledImages:
        """Return the cropped image with its label.

        Raises:
            DataError: the sample does not have exactly one image and a label below `classes`, or
                its image cannot be decoded.
        """
        label = _label(sample, self.classes)
        image = _image(sample)
        box = random_box(*image.size, context.rng) if self.augment else center_box(*image.size)
        shape = (self.size, self.size)
        image = image.resize(shape, Image.Resampling.BILINEAR, box, reducing_gap=2.0)
        if self.augment and context.rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return LabelledImages(np.asarray(image), np.array(label))


def check_sample(sample: Sample, classes: int) -> None:
    """Raise DataError if a sample does not have exactly one image and a label below `classes`, or
    its image cannot be decoded."""
    _label(sample, classes)
    _image(sample)


def stack(samples: list[LabelledImages]) -> LabelledImages:
    """Stack samples of equal size to a batch."""
    return LabelledImages(
        np.stack([s.pixels for s in samples]), np.stack([s.labels for s in samples])
    )


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Return a box of random size, shape and place within an image; the box of the center if none
    fits within some tries."""
    for _ in range(_TRIES):
        area = width * height * rng.uniform(LEAST_AREA, 1.0)
        aspect_ratio = math.exp(
            rng.uniform(-math.log(MOST_ASPECT_RATIO), math.log(MOST_ASPECT_RATIO))
        )
        wide, high = math.sqrt(area * aspect_ratio), math.sqrt(area / aspect_ratio)
        if wide <= width and high <= height:
            left, top = rng.uniform(0, width - wide), rng.uniform(0, height - high)
            return left, top, min(left + wide, width), min(top + high, height)
    return center_box(width, height)


def center_box(width: int, height: int) -> Box:
    """Return the box of the center crop of an image."""
    half = CENTER_SHARE * min(width, height) / 2
    return width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half


def _image(sample: Sample) -> Image.Image:
    names = [name for name in sample if name in (*ENCODED, ARRAY)]
    if not names and IMAGE_FIELD in sample:
        names = [IMAGE_FIELD]
    if len(names) != 1:
        raise _error(sample, f"has images {names}; it takes one of {', '.join((*ENCODED, ARRAY))}")
    content = sample[names[0]]
    if isinstance(content, dict):  # as Hugging Face's datasets store it
        content = content.get("bytes")
    if not isinstance(content, bytes):
        raise _error(sample, f"has in {names[0]!r} no bytes of an image")
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
    content = sample.get(LABEL, sample.get(LABEL_FIELD))
    if content is None:
        raise _error(sample, f"has no label: a member {LABEL!r} with the number of its class")
    try:
        label = int(content) if isinstance(content, bytes) else operator.index(content)
    except (ValueError, TypeError):
        raise _error(sample, f"has a label {str(content)[:20]} that is not a number") from None
    if not 0 <= label < classes:
        raise _error(sample, f"has label {label}, and model.classes={classes} end before it")
    return label


def _error(sample: Sample, problem: str) -> DataError:
    return DataError(f"{sample['__url__']}: sample {sample['__key__']!r} {problem}")
