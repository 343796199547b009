"""The output layer, which computes logits from features, or directly the losses of the next
tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hpckit.trainer.batches.byte_text import PADDING


class Unembedding(nn.Module):
    """The output layer of a decoder. It has no parameters: the weight is an argument."""

    chunks = 1
    """Number of chunks of the positions. Losses are computed chunk by chunk, so that only one of
    them has logits at a time; with more than one, the backward pass recomputes the logits."""

    def forward(self, x: Tensor, weight: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return logits, or losses if there are targets.

        Args:
            x: (batch, time, width).
            weight: (vocab, width).
            targets: (batch, time) tokens or `PADDING`.

        Returns:
            Logits (batch, time, vocab); with targets their losses, as of `token_losses`.
        """
        if targets is None:
            return _logits(x, weight)
        if self.chunks == 1:
            return _losses(x, weight, targets)
        pairs = zip(x.chunk(self.chunks, 1), targets.chunk(self.chunks, 1), strict=True)
        return torch.cat(
            [_recomputed_losses(part, weight, wanted) for part, wanted in pairs], dim=1
        )


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each next token, fp32, (batch, time); 0 where there is none.

    Args:
        logits: (batch, time, vocab).
        targets: (batch, time) tokens or `PADDING`.
    """
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=PADDING, reduction="none"
    ).view_as(targets)


def _logits(x: Tensor, weight: Tensor) -> Tensor:
    logits = functional.linear(x, weight)
    return logits.full_tensor() if isinstance(logits, DTensor) else logits


def _losses(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return token_losses(_logits(x, weight), targets)


def _recomputed_losses(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    out: Tensor = checkpoint(
        _losses, x, weight, targets, use_reentrant=False, preserve_rng_state=False
    )
    return out
