from __future__ import annotations

import numpy as np
import pytest

from checkpointing.codec.pieces import PAYS, SPARSE, Form, Piece, Plane, cut, look

DENSE = Plane(bits=8.0, zeros=0.0)
SKEWED = Plane(bits=3.0, zeros=0.1)
ZEROS = Plane(bits=0.5, zeros=0.93)


@pytest.mark.parametrize(
    ("planes", "pieces"),
    [
        ([DENSE], [Piece(0, 1)]),
        ([DENSE] * 8, [Piece(0, 8)]),
        ([DENSE, SKEWED], [Piece(0, 1), Piece(1, 1, Form.FRAME)]),
        (  # weights
            [DENSE, DENSE, DENSE, SKEWED],
            [Piece(0, 2), Piece(2, 1), Piece(3, 1, Form.FRAME)],
        ),
        (  # their delta
            [DENSE, DENSE, SKEWED, ZEROS],
            [Piece(0, 2), Piece(2, 1, Form.FRAME), Piece(3, 1, Form.SPARSE)],
        ),
        (
            [SKEWED, DENSE, DENSE, DENSE],
            [Piece(0, 1, Form.FRAME), Piece(1, 1), Piece(2, 2)],
        ),
        (
            [DENSE] * 7 + [SKEWED],
            [Piece(0, 4), Piece(4, 2), Piece(6, 1), Piece(7, 1, Form.FRAME)],
        ),
    ],
)
def test_cut(planes: list[Plane], pieces: list[Piece]) -> None:
    assert cut(planes) == pieces


@pytest.mark.parametrize(
    ("plane", "pays", "form"),
    [
        (Plane(PAYS, 0.0), False, Form.FRAME),
        (Plane(PAYS - 0.01, 0.0), True, Form.FRAME),
        (Plane(1.0, SPARSE[0]), True, Form.SPARSE),
        (Plane(1.0, SPARSE[0] - 0.01), True, Form.FRAME),
        (Plane(0.0, 1.0), True, Form.FRAME),  # runs of zeros: the frame is next to nothing
    ],
)
def test_when_a_plane_pays(plane: Plane, pays: bool, form: Form) -> None:
    assert (plane.pays, plane.form) == (pays, form)


def test_look_measures_entropy() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.integers(0, 256, 1 << 16), rng.choice([0, 1], 1 << 16, p=[0.75, 0.25])
    planes = look((low | high << 8).astype("<u2"))
    assert planes[0].bits == pytest.approx(8, abs=0.01)
    assert planes[1].bits == pytest.approx(0.75 * np.log2(4 / 3) + 0.25 * 2, abs=0.01)
    assert planes[1].zeros == pytest.approx(0.75, abs=0.01)


def test_few_noisy_words_do_not_look_skewed() -> None:
    words = np.random.default_rng(0).integers(0, 256, 512).astype(np.uint8)
    assert not look(words)[0].pays
