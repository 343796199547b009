"""The compilation of the blocks of a model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from hpckit.torch_internals import has_cpp_compiler, has_triton


def compile_blocks(blocks: Iterable[nn.Module]) -> None:
    """Have each block compiled on its first call; the names of its parameters do not change.

    FSDP's hooks around a block are not compiled, so there are no graph breaks. Sizes are constants
    of the compiled code: blocks with other sizes, as a ResNet has them, are compiled separately.
    """
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=False)


def lack_of_compiler(device: torch.device) -> str | None:
    """Return what is missing here for compilation; None if nothing is."""
    if device.type == "cuda":
        return None if has_triton() else "there is no Triton for this GPU"
    if not has_cpp_compiler():
        return "there is no C++ compiler, such as g++ (CXX names another)"
    return None
