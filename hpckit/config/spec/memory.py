"""Activation checkpointing, offloading, compilation and attention kernels."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from hpckit.config.spec.earlier_attributes import EarlierAttributes
from hpckit.config.spec.field_types import GROUP, Count


@dataclass(frozen=True, config=GROUP)
class MemorySpec(EarlierAttributes, group="memory"):
    """Trade-offs between memory and speed (`conf/memory/`). They change results only by rounding,
    and a run may resume with others."""

    activation_checkpointing: Literal["none", "selective", "full"]
    """Which activations of a block are recomputed in the backward pass instead of being kept. full:
    all but the input of the block (Chen et al. 2016); selective: all but the outputs of attention
    and of every second matrix product."""
    cpu_offload: bool
    """Whether parameters, gradients and optimizer state are in host memory (FSDP CPU offload),
    where the optimizer runs; the parameters of a layer are copied to the GPU when they are
    needed."""
    loss_chunks: Count
    """Number of chunks of the positions whose logits are computed one chunk at a time (chunked
    cross-entropy). With more than 1, logits are recomputed in the backward pass."""
    compile: bool
    """Whether each block is compiled at its first step (torch.compile), which takes about a
    minute."""
    attention: Literal["auto", "flash", "efficient", "cudnn", "math", "varlen"]
    """Backend of scaled_dot_product_attention; the run fails at its start if it is not available.
    auto: torch chooses, and the choice is in the logs and events. varlen: attention within each of
    the documents of a window (`data.document_mask`) by their offsets and without a mask, which
    computes nothing between documents: torch's flash attention of sequences of varying length on
    GPUs, one document after the other on CPUs."""
    snapshot: bool
    """Whether each rank records its recent GPU allocations, so that it can write a memory snapshot
    to its logs when it runs out of memory."""
