"""Whether a rank's device can do what a run asks of it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hpckit.config.spec import RunSpec
from hpckit.trainer.device.block_compilation import lack_of_compiler
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.precision.fp8_linear import lack_of_fp8
from hpckit.trainer.trackers.tracker_builder import lacking


def require(cfg: RunSpec, device: torch.device) -> None:
    """
    Raises:
        TrainingError: it cannot; with everything that it lacks.
    """
    if lacks := list(_lacks(cfg, device)):
        raise TrainingError("\n".join(lacks))


def lack_of_bf16(device: torch.device) -> str | None:
    """Why a run should not use it here; None if it can. Where it is missing, torch computes it by
    fp32, slower than that."""
    if device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    return f"{torch.cuda.get_device_name(device)} has none, it comes with Ampere"


def _lacks(cfg: RunSpec, device: torch.device) -> Iterator[str]:
    """What the check of a spec cannot know where it leaves the device open."""
    yield from lacking(cfg)
    if cfg.precision.compute == "fp8" and (why := lack_of_fp8(device)):
        yield f"precision.compute=fp8: {why}; take bf16"
    if cfg.precision.compute == "bf16" and (why := lack_of_bf16(device)):
        yield f"precision.compute=bf16: {why}; take fp16 or fp32"
    if cfg.memory.compile and (why := lack_of_compiler(device)):
        yield f"memory.compile: {why}"
    if cfg.memory.offload and device.type == "cpu":
        yield "memory.offload: this rank has no GPU, so all is in the host's memory anyway"
