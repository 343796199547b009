"""Nobody's peak is guessed."""

from __future__ import annotations

import math

import pytest
import torch

from hpckit.trainer.device.peak_flops import known_peak, peak_flops


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L4", 121e12),
        ("Tesla V100-SXM2-32GB", 125e12),
        ("Tesla V100-PCIE-16GB", 112e12),
        ("NVIDIA A10G", None),
        ("NVIDIA A1000", None),
        ("NVIDIA RTX A4000", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_the_peak_of_a_card_is_known_or_not(card: str, peak: float | None) -> None:
    assert peak_flops(card) == peak


def test_a_cpu_has_no_peak() -> None:
    assert math.isnan(known_peak(torch.device("cpu")))
