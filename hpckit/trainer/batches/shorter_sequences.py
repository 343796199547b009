"""Sequences that are shorter than the samples, for `train.sequence_ramp`."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from hpckit.trainer.batches.token_windows import TokenBatch


def shorter(batch: TokenBatch, length: int, method: Literal["split", "truncate"]) -> TokenBatch:
    """Return sequences of `length` tokens: all of each sample, or its first ones.

    Args:
        method: split: each sample of (batch, time) is divided into time / length rows; truncate:
            the rest of each sample is left out.
    """
    inputs, targets = (cut(one, length, method) for one in (batch.inputs, batch.targets))
    documents = None if batch.documents is None else cut(batch.documents, length, method)
    return TokenBatch(inputs, targets, documents)


def cut(tokens: Tensor, length: int, method: Literal["split", "truncate"]) -> Tensor:
    """Return one of the tensors of `shorter`; what is as short already, as it is."""
    if tokens.shape[1] == length:
        return tokens
    if method == "truncate":
        return tokens[:, :length].contiguous()
    return tokens.reshape(-1, length)
