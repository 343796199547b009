"""Waits for what a device has been given to compute."""

from __future__ import annotations

import torch


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has computed what is queued. A CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
