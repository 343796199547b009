from __future__ import annotations

import numpy as np
import pytest

from checkpointing.codec.algorithms.plane_pieces import (
    PAYS,
    SPARSE,
    PieceEncoding,
    PlanePiece,
    PlaneSample,
    cut,
    sample_planes,
)

DENSE = PlaneSample(bits=8.0, zeros=0.0)
SKEWED = PlaneSample(bits=3.0, zeros=0.1)
ZEROS = PlaneSample(bits=0.5, zeros=0.93)


@pytest.mark.parametrize(
    ("planes", "pieces"),
    [
        ([DENSE], [PlanePiece(0, 1)]),
        ([DENSE] * 8, [PlanePiece(0, 8)]),
        ([DENSE, SKEWED], [PlanePiece(0, 1), PlanePiece(1, 1, PieceEncoding.FRAME)]),
        (  # weights
            [DENSE, DENSE, DENSE, SKEWED],
            [PlanePiece(0, 2), PlanePiece(2, 1), PlanePiece(3, 1, PieceEncoding.FRAME)],
        ),
        (  # their delta
            [DENSE, DENSE, SKEWED, ZEROS],
            [
                PlanePiece(0, 2),
                PlanePiece(2, 1, PieceEncoding.FRAME),
                PlanePiece(3, 1, PieceEncoding.SPARSE),
            ],
        ),
        (
            [SKEWED, DENSE, DENSE, DENSE],
            [PlanePiece(0, 1, PieceEncoding.FRAME), PlanePiece(1, 1), PlanePiece(2, 2)],
        ),
        (
            [DENSE] * 7 + [SKEWED],
            [
                PlanePiece(0, 4),
                PlanePiece(4, 2),
                PlanePiece(6, 1),
                PlanePiece(7, 1, PieceEncoding.FRAME),
            ],
        ),
    ],
)
def test_cut(planes: list[PlaneSample], pieces: list[PlanePiece]) -> None:
    assert cut(planes) == pieces


@pytest.mark.parametrize(
    ("plane", "pays", "form"),
    [
        (PlaneSample(PAYS, 0.0), False, PieceEncoding.FRAME),
        (PlaneSample(PAYS - 0.01, 0.0), True, PieceEncoding.FRAME),
        (PlaneSample(1.0, SPARSE[0]), True, PieceEncoding.SPARSE),
        (PlaneSample(1.0, SPARSE[0] - 0.01), True, PieceEncoding.FRAME),
        (
            PlaneSample(0.0, 1.0),
            True,
            PieceEncoding.FRAME,
        ),  # runs of zeros: the frame is next to nothing
    ],
)
def test_when_a_plane_pays(plane: PlaneSample, pays: bool, form: PieceEncoding) -> None:
    assert (plane.pays, plane.form) == (pays, form)


def test_look_measures_entropy() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.integers(0, 256, 1 << 16), rng.choice([0, 1], 1 << 16, p=[0.75, 0.25])
    planes = sample_planes((low | high << 8).astype("<u2"))
    assert planes[0].bits == pytest.approx(8, abs=0.01)
    assert planes[1].bits == pytest.approx(0.75 * np.log2(4 / 3) + 0.25 * 2, abs=0.01)
    assert planes[1].zeros == pytest.approx(0.75, abs=0.01)


def test_few_noisy_words_do_not_look_skewed() -> None:
    words = np.random.default_rng(0).integers(0, 256, 512).astype(np.uint8)
    assert not sample_planes(words)[0].pays
