"""Images as pixels of one size, with labels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data import DataError, Sample, SampleContext
from hpckit.trainer.batches.labelled_images import (
    LEAST_AREA,
    MOST_ASPECT_RATIO,
    ImageCrop,
    LabelledImages,
    Pixels,
    center_box,
    random_box,
    stack,
)
from tests.pictures import encoded, picture

PLAIN = ImageCrop(size=16, classes=4, augment=False)
SIDES = st.integers(1, 600)


def sample(**members: Any) -> Sample:
    return {"__key__": "a/b", "__url__": "/shards/x.tar", **members}


def seen(crop: ImageCrop, found: Sample, position: int = 0, seed: int = 1) -> LabelledImages:
    return crop(found, SampleContext(position, 0, seed))


def halves(width: int, height: int) -> Pixels:
    """Red on the left, blue on the right."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2, 0] = pixels[:, width // 2 :, 2] = 255
    return pixels


def npy(array: np.ndarray[Any, Any]) -> bytes:
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


@pytest.mark.parametrize("kind", ["jpg", "jpeg", "png", "webp", "npy"])
def test_every_kind_of_image_is_read(kind: str) -> None:
    pixels = halves(40, 30)
    content = npy(pixels) if kind == "npy" else encoded(pixels, kind)
    found = seen(PLAIN, sample(**{kind: content, "cls": b"3"}))
    assert found.pixels.shape == (16, 16, 3)
    assert found.pixels.dtype == np.uint8
    assert found.labels == 3
    left, right = found.pixels[8, 2].astype(int), found.pixels[8, 13].astype(int)
    assert left[0] > 200 > 60 > left[2]
    assert right[2] > 200 > 60 > right[0]


def test_an_image_of_grey_or_with_a_palette_has_three_colours() -> None:
    grey = Image.fromarray(halves(20, 20)).convert("L")
    for image in (grey, grey.convert("P"), grey.convert("RGBA")):
        made = io.BytesIO()
        image.save(made, "PNG")
        found = seen(PLAIN, sample(png=made.getvalue(), cls=b"0"))
        assert found.pixels.shape == (16, 16, 3)


@given(width=SIDES, height=SIDES, seed=st.integers(0, 2**32))
def test_a_random_box_is_a_part_of_the_image_of_no_odd_shape(
    width: int, height: int, seed: int
) -> None:
    box = random_box(width, height, np.random.default_rng(seed))
    left, top, right, bottom = box
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    if box != center_box(width, height):
        share = (right - left) * (bottom - top) / (width * height)
        assert LEAST_AREA * 0.999 <= share <= 1.001
        assert (
            1 / MOST_ASPECT_RATIO * 0.999
            <= (right - left) / (bottom - top)
            <= MOST_ASPECT_RATIO * 1.001
        )


@given(width=SIDES, height=SIDES)
def test_the_middle_is_a_square_in_the_middle(width: int, height: int) -> None:
    left, top, right, bottom = center_box(width, height)
    assert right - left == pytest.approx(bottom - top)
    assert left + right == pytest.approx(width)
    assert top + bottom == pytest.approx(height)
    assert left >= 0
    assert top >= 0


def test_what_is_cut_out_depends_on_seed_and_position_alone() -> None:
    crop = ImageCrop(size=8, classes=4, augment=True)
    found = sample(png=picture(1, 64), cls=b"1")

    def pixels(position: int, seed: int) -> bytes:
        return seen(crop, found, position, seed).pixels.tobytes()

    assert pixels(5, 1) == pixels(5, 1)
    assert len({pixels(position, seed) for position in range(4) for seed in range(4)}) == 16


def test_about_half_are_mirrored() -> None:
    crop = ImageCrop(size=8, classes=4, augment=True)
    found = sample(png=encoded(halves(1000, 10), "png"), cls=b"1")  # too wide for a random box
    reds = [seen(crop, found, position).pixels[4, 0, 0] > 128 for position in range(200)]
    assert 70 < sum(reds) < 130


def test_without_augmentation_an_image_is_always_the_same() -> None:
    found = sample(png=picture(1, 64), cls=b"1")
    assert len({seen(PLAIN, found, n, n).pixels.tobytes() for n in range(5)}) == 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_fields_of_other_formats_are_images_and_labels(wrapped: bool) -> None:
    content = picture(1, 64)
    image = {"bytes": content, "path": None} if wrapped else content
    found = seen(PLAIN, sample(image=image, label=np.int64(3)))
    expected = seen(PLAIN, sample(png=content, cls=b"3"))
    assert found.pixels.tobytes() == expected.pixels.tobytes()
    assert found.labels == 3


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"cls": b"1"}, r"has images \[\]"),
        ({"png": picture(0, 8), "jpg": b"", "cls": b"1"}, "has images"),
        ({"png": picture(0, 8)}, "has no label"),
        ({"png": picture(0, 8), "cls": b"cat"}, r"label b'cat' that is not a number"),
        ({"png": picture(0, 8), "cls": b"4"}, r"label 4, and model\.classes=4"),
        ({"png": picture(0, 8), "cls": b"-1"}, "label -1"),
        ({"png": b"no image", "cls": b"1"}, "broken image 'png'"),
        ({"png": picture(0, 32)[:60], "cls": b"1"}, "broken image 'png'"),
        ({"npy": npy(np.zeros((4, 4, 3))), "cls": b"1"}, r"uint8 \(height, width, 3\)"),
        ({"npy": npy(np.array([{}], object)), "cls": b"1"}, "broken image 'npy'"),
        ({"npy": b"", "cls": b"1"}, "broken image 'npy'"),
        ({"png": picture(0, 8), "label": 1.5}, "label 1.5 that is not a number"),
        ({"image": 7, "label": 1}, "has in 'image' no bytes of an image"),
    ],
)
def test_what_is_no_labelled_image_is_refused_by_key_and_shard(
    members: dict[str, bytes], told: str
) -> None:
    with pytest.raises(DataError, match=rf"/shards/x\.tar: sample 'a/b' .*{told}"):
        seen(PLAIN, sample(**members))


def test_samples_are_stacked_to_a_batch() -> None:
    batch = stack([seen(PLAIN, sample(png=picture(n, 8), cls=b"%d" % n)) for n in range(3)])
    assert batch.pixels.shape == (3, 16, 16, 3)
    assert batch.labels.tolist() == [0, 1, 2]
    assert batch.labels.dtype == np.int64
