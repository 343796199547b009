"""The check that the device of a rank supports what the spec asks for."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hpckit.config.spec import RunSpec
from hpckit.trainer.device.block_compilation import lack_of_compiler
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.precision.fp8_linear import lack_of_fp8
from hpckit.trainer.trackers.tracker_builder import missing_packages


def require_features(cfg: RunSpec, device: torch.device) -> None:
    """Check that `device`, and the packages that are installed, support what `cfg` asks for.

    Raises:
        TrainingError: they do not; the message names everything that is missing.
    """
    if lacks := list(_missing_features(cfg, device)):
        raise TrainingError("\n".join(lacks))


def lack_of_bf16(device: torch.device) -> str | None:
    """Return why a run should not use bf16 on `device`; None if it should. Without support by the
    hardware, torch computes bf16 by fp32, which is slower than fp32 itself."""
    if device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    return f"{torch.cuda.get_device_name(device)} has none, it comes with Ampere"


def _missing_features(cfg: RunSpec, device: torch.device) -> Iterator[str]:
    """Yield the missing features. The check of the spec cannot do this, because it does not know
    the device."""
    yield from missing_packages(cfg)
    if cfg.precision.compute == "fp8" and (why := lack_of_fp8(device)):
        yield f"precision.compute=fp8: {why}; use bf16"
    if cfg.precision.compute == "bf16" and (why := lack_of_bf16(device)):
        yield f"precision.compute=bf16: {why}; use fp16 or fp32"
    if cfg.memory.compile and (why := lack_of_compiler(device)):
        yield f"memory.compile: {why}"
    if cfg.memory.cpu_offload and device.type == "cpu":
        yield "memory.cpu_offload: this rank has no GPU, so all is in the host's memory anyway"
