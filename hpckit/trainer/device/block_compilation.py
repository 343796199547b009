"""Compiling the blocks of a model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def compile_blocks(blocks: Iterable[nn.Module]) -> None:
    """Have each compute compiled code from its first call on; the names of their parameters stay.

    What FSDP does around a block stays outside, so no graph breaks. Sizes are constants: of blocks
    that differ in them, as those of a ResNet, each kind has code of its own.
    """
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=False)


def lack_of_compiler(device: torch.device) -> str | None:
    """What is missing here; None if nothing is."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return None if has_triton() else "there is no Triton for this GPU"
    from torch._inductor.cpp_builder import get_cpp_compiler  # seconds, for those who compile
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "there is no C++ compiler, such as g++ (CXX names another)"
    return None
