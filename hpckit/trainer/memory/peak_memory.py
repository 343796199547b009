"""The peak memory of a rank."""

from __future__ import annotations

import resource

import torch

NAMES = ("peak_memory_bytes", "peak_rss_bytes")
"""Names of the peak in a step record, on GPUs and on CPUs."""


def peak_name(device: torch.device) -> str:
    """Return the name in a step record of what `peak_bytes` measures."""
    return NAMES[0] if device.type == "cuda" else NAMES[1]


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory of this rank in bytes.

    On a GPU it is the memory of torch's tensors since the last call. On a CPU it is the resident
    memory of the process since its start, since the kernel reports no other peak.
    """
    if device.type == "cuda":
        most = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return most
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
