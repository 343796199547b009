"""The peak FLOP/s of GPUs."""

from __future__ import annotations

import math
import re

import torch

# The values of NVIDIA's data sheets for dense matrices, 16-bit inputs and 32-bit sums. The first
# pattern that matches torch.cuda.get_device_name counts.
_PEAKS = (
    (r"GB200", 2500e12),
    (r"B200", 2250e12),
    (r"H200 NVL", 835e12),
    (r"H100 NVL", 835e12),
    (r"(H100|H800) PCIe", 756e12),
    (r"(GH200|H200|H100|H800)\b", 989e12),
    (r"H20\b", 148e12),
    (r"A[18]00\b", 312e12),
    (r"L40S", 362e12),
    (r"L40\b", 181e12),
    (r"L4\b", 121e12),
    (r"A40\b", 149.7e12),
    (r"A30\b", 165e12),
    (r"A10\b", 125e12),
    (r"V100S", 130e12),
    (r"V100-PCIE", 112e12),
    (r"V100\b", 125e12),
)


def peak_flops(card: str) -> float | None:
    """Return the peak FLOP/s, with 16-bit inputs, of the GPU that torch calls `card`; None if it is
    not known, or if this is only a part of a GPU (MIG)."""
    if "MIG" in card:
        return None
    return next((peak for name, peak in _PEAKS if re.search(rf"\b{name}", card)), None)


def known_peak(device: torch.device) -> float:
    """Return the peak FLOP/s of this rank's GPU; NaN if it is not known, or if there is no GPU."""
    if device.type != "cuda":
        return math.nan
    return peak_flops(torch.cuda.get_device_name(device)) or math.nan
