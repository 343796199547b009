"""A sum over ranks that is wrong is seen; real ranks do this in every run."""

from __future__ import annotations

import torch

from hpckit.trainer.parallel.collectives import wrong_sums


def test_a_wrong_sum_is_seen() -> None:
    numbers = torch.full((4,), 1 + 2 + 3, dtype=torch.int64)
    assert wrong_sums(numbers, 3) == 0
    numbers[2] += 1 << 40
    assert wrong_sums(numbers, 3) == 1
    assert wrong_sums(numbers, 2) == 4
