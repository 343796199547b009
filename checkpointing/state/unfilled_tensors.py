"""New tensors to load into, whose memory nothing writes before their content."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor, nn

from checkpointing.staging.arena import madvise
from checkpointing.staging.slot_layout import PAGE
from checkpointing.torch_internals import held_tensor

_LARGE = 4 << 20  # bytes; from here on, at least one whole huge page lies in a tensor


def unfilled_like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a new tensor of this dtype with undefined content, and the shape, strides, device and
    sharding that `torch.zeros_like` gives it. In host memory it has huge pages, if the kernel has
    them, which are filled in a third of the time: torch does not ask for them.

    A tensor of a class of its own gets what `zeros_like` returns, with its content: a class decides
    for each of these functions whether the result is of the same class."""
    with torch.no_grad():
        if type(held_tensor(tensor)) not in (Tensor, nn.Parameter):
            return torch.zeros_like(tensor, dtype=dtype, requires_grad=False)
        made = torch.empty_like(tensor, dtype=dtype, requires_grad=False)
    held = held_tensor(made)
    if held.is_cpu and held.nbytes >= _LARGE:
        start, end = held.data_ptr(), held.data_ptr() + held.nbytes
        start -= start % PAGE  # what the allocator notes in this page is not changed by advice
        # a kernel without huge pages answers with an error, and uses others
        madvise(start, end - start, mmap.MADV_HUGEPAGE)
    return made
