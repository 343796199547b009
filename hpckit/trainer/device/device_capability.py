"""Checks that a rank's device supports what the spec asks for."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hpckit.config.spec import RunSpec
from hpckit.trainer.device.block_compilation import lack_of_compiler
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.precision.fp8_linear import lack_of_fp8
from hpckit.trainer.trackers.tracker_builder import lacking


def require(cfg: RunSpec, device: torch.device) -> None:
    """Check the device.

    Raises:
        TrainingError: it cannot; with everything that it lacks.
    """
    if lacks := list(_missing_features(cfg, device)):
        raise TrainingError("\n".join(lacks))


def lack_of_bf16(device: torch.device) -> str | None:
    """Return why a run should not use bf16 here; None if it can. Where the hardware lacks it, torch
    computes it by fp32, which is slower than fp32 itself."""
    if device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    return f"{torch.cuda.get_device_name(device)} has none, it comes with Ampere"


def _missing_features(cfg: RunSpec, device: torch.device) -> Iterator[str]:
    """Yield what the check of a spec cannot know, because the spec leaves the device open."""
    yield from lacking(cfg)
    if cfg.precision.compute == "fp8" and (why := lack_of_fp8(device)):
        yield f"precision.compute=fp8: {why}; take bf16"
    if cfg.precision.compute == "bf16" and (why := lack_of_bf16(device)):
        yield f"precision.compute=bf16: {why}; take fp16 or fp32"
    if cfg.memory.compile and (why := lack_of_compiler(device)):
        yield f"memory.compile: {why}"
    if cfg.memory.offload and device.type == "cpu":
        yield "memory.offload: this rank has no GPU, so all is in the host's memory anyway"
