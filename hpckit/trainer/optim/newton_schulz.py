"""The approximate orthogonalisation of matrices by Newton-Schulz iterations."""

from __future__ import annotations

from torch import Tensor
from torch.linalg import matrix_norm

ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of a x + b x^3 + c x^5, which moves values in (0, 1] towards 1. The polynomial is
steep at 0, so that few iterations suffice, but the values end anywhere from about 0.7 to 1.2
(Jordan et al. 2024)."""
_LEAST = 1e-7  # least norm to divide by


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return `matrices` with all singular values near 1, by Newton-Schulz iterations in bf16.

    Args:
        matrices: (..., rows, columns).

    Returns:
        bf16 of the same shape.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.float().mT if is_tall else matrices.float()
    x = (x / matrix_norm(x, keepdim=True).clamp(min=_LEAST)).bfloat16()
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    out: Tensor = x.mT if is_tall else x
    return out
