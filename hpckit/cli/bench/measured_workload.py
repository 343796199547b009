"""The model that `hpckit bench profile` and `precision` train, and images for it where the user
gives none."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from data import ShardWriter
from hpckit.config.entry_points import IMAGES
from hpckit.config.spec import ImageSpec, RunSpec
from hpckit.config.spec_parser import SpecError
from hpckit.submit.compose import compose_spec
from hpckit.submit.composition.hydra_values import quoted

DEFAULT_MODEL = "resnet_nano"
"""A ResNet that two cores train in seconds."""
TRAINED, VALIDATED = 512, 128
"""Numbers of generated images."""
_PER_SHARD = 128
_NOISE, _TINT, _SPREAD = 160, 40, 12.0
"""Levels of the noise of pixels, of the colour of a class, and the standard deviation of the colour
of an image, by which a few images look like those of another class."""
_GIVEN = ("command", "command.arguments", "data", "data.shards", "entry", "experiment")
"""Keys by which a user says what is trained, and on which data."""


@dataclass(frozen=True)
class MeasuredWorkload:
    """What is trained."""

    words: tuple[str, ...]
    """Overrides, those of the user included."""
    spec: RunSpec
    """The spec of them, in which generated images have no folder yet."""
    images: ImageSpec | None
    """The model for which images have to be generated; None: the data are the user's, or text."""


def choose_workload(typed: Sequence[str]) -> MeasuredWorkload:
    """Return what the overrides say; without a model, a small ResNet. For a model of images without
    data, images are generated.

    Raises:
        SpecError: they cannot be composed.
    """
    keys = {word.lstrip("+").partition("=")[0] for word in typed if "=" in word}
    if keys & {*_GIVEN}:
        return MeasuredWorkload(tuple(typed), compose_spec(typed), None)
    words = tuple(typed) if "model" in keys else (f"model={DEFAULT_MODEL}", *typed)
    try:
        spec = compose_spec([*_image_words("."), *words])
    except SpecError:
        return MeasuredWorkload(words, compose_spec(words), None)
    images = spec.model if isinstance(spec.model, ImageSpec) else None
    return MeasuredWorkload(words, spec if images else compose_spec(words), images)


def with_images(work: MeasuredWorkload, folder: Path, *, is_validated: bool) -> list[str]:
    """Return the overrides of a run, after writing its images to `folder` if it has none.

    Args:
        is_validated: whether the run also reads images for validation.
    """
    if work.images is None:
        return [*work.words]
    side, classes = work.images.image_size, work.images.classes
    words = _image_words(str(folder / "images"))
    if not (folder / "images").exists():
        write_images(folder / "images", TRAINED, side, classes)
    if is_validated:
        words.append(f"data.validation={quoted(str(folder / 'validation'))}")
        write_images(folder / "validation", VALIDATED, side, classes)
    return [*words, *work.words]


def _image_words(shards: str) -> list[str]:
    return [
        f"entry={IMAGES}",
        "data=images",
        f"data.shards={quoted(shards)}",
        "data.threads=1",
    ]


def write_images(folder: Path, samples: int, side: int, classes: int) -> None:
    """Write shards of so many images of noise, each tinted in the colour of its class."""
    folder.mkdir(parents=True)
    seed = samples  # training and validation differ
    with ShardWriter(folder / "shard-%06d.tar", max_samples=_PER_SHARD) as writer:
        for number in range(samples):
            label = number % classes
            writer.write(
                {
                    "__key__": f"{number:06d}",
                    "jpg": _picture(np.random.default_rng((seed, number)), side, label / classes),
                    "cls": str(label),
                }
            )


def _picture(rng: np.random.Generator, side: int, hue: float) -> bytes:
    noise = rng.integers(0, _NOISE, (side, side, 3))
    tint = np.array(colorsys.hsv_to_rgb(hue, 1.0, _TINT)) + rng.normal(0, _SPREAD, 3)
    pixels = np.clip(noise + tint, 0, 255).astype(np.uint8)
    found = BytesIO()
    Image.fromarray(pixels).save(found, "JPEG", quality=90)
    return found.getvalue()


def is_trained_here(spec: RunSpec) -> bool:
    """Return whether the run is one of hpckit's training functions, whose blocks can be compiled
    and whose precision the config says."""
    return spec.command is None and (spec.entry or "").startswith("hpckit.")


def model_name(work: MeasuredWorkload) -> str:
    """Return the name of what is trained, for titles: of the option of `model`, or of the training
    function of a user."""
    if not is_trained_here(work.spec):
        return str(work.spec.entry)
    named = [word.partition("=")[2] for word in work.words if word.startswith("model=")]
    return named[-1] if named else work.spec.name
