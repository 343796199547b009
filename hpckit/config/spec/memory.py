"""What is computed again, kept elsewhere or fused, so that a model fits and runs fast."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Count


@dataclass(frozen=True, config=GROUP)
class MemorySpec:
    """Time for memory, and the other way round (`conf/memory/`); it changes no result but rounding,
    and a run may go on with another."""

    recompute: Literal["none", "selective", "full"]
    """What of a block's forward pass the backward pass computes again, in place of keeping it.
    full: all but its input (Chen et al. 2016); selective: all but the outputs of attention and of
    every second matrix product."""
    offload: bool
    """Parameters, gradients and optimizer state live in the host's memory, where the optimizer
    computes; each layer's parameters come to the GPU when its turn comes."""
    loss_chunks: Count
    """Parts of the positions, of which only one at a time has logits; of more than 1, each part's
    are computed again in the backward pass."""
    compile: bool
    """Each block is compiled at its first step (torch.compile), which takes a minute or so."""
    attention: Literal["auto", "flash", "efficient", "cudnn", "math"]
    """Kernels of attention; the run fails at once where those asked for cannot run. auto: torch's
    choice. Which it is is in the logs and events."""
    snapshot: bool
    """Each rank records where the newest allocations of its GPU's memory came from, for the
    snapshot that it leaves in its logs when that memory runs out."""
