"""The most memory that a rank has used."""

from __future__ import annotations

import resource

import torch

NAMES = ("peak_memory_bytes", "peak_rss_bytes")


def peak_name(device: torch.device) -> str:
    """Of what `peak_bytes` says."""
    return NAMES[0] if device.type == "cuda" else NAMES[1]


def peak_bytes(device: torch.device) -> int:
    """On a GPU, the most that torch's tensors took since the last call; else the most that the
    process had resident since it began, which is all that the kernel says."""
    if device.type == "cuda":
        most = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return most
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
