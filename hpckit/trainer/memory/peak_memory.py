"""Peak memory of a rank."""

from __future__ import annotations

import resource

import torch

NAMES = ("peak_memory_bytes", "peak_rss_bytes")


def peak_name(device: torch.device) -> str:
    """Return the name of the quantity that `peak_bytes` measures."""
    return NAMES[0] if device.type == "cuda" else NAMES[1]


def peak_bytes(device: torch.device) -> int:
    """Return peak memory in bytes: on a GPU, of torch's tensors since the last call; else the peak
    resident memory of the process since it began, which is all that the kernel reports."""
    if device.type == "cuda":
        most = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return most
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
