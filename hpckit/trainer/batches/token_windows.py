"""Batches of token windows, as a loader stacks them and as a model takes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from data import PackedSequence
from hpckit.trainer.batches.byte_text import PADDING

Ints = npt.NDArray[np.int64]


class TokenWindows(NamedTuple):
    """A batch of windows of one token more than the context, so that each position has a next
    token."""

    tokens: Tensor
    """(batch, time + 1) tokens or `PADDING`."""
    documents: Tensor | None
    """Document numbers, (batch, time + 1) integers: neighbours with equal ones are of one document,
    and attend to no other. None: tokens attend to all tokens before them."""

    def to(self, device: torch.device) -> TokenWindows:
        """Return the same on a device, without waiting for the copies."""
        tokens, documents = self
        there = documents if documents is None else documents.to(device, non_blocking=True)
        return TokenWindows(tokens.to(device, non_blocking=True), there)


class TokenBatch(NamedTuple):
    """The inputs and targets of a model; each is (batch, time)."""

    inputs: Tensor
    """Tokens."""
    targets: Tensor
    """The tokens that come next; `PADDING` where there is none."""
    documents: Tensor | None
    """Document numbers as of `TokenWindows`."""


def stack(windows: list[Ints]) -> TokenWindows:
    """Stack windows of equal length that hold one document each."""
    return TokenWindows(torch.from_numpy(np.stack(windows)), None)


def stack_apart(windows: list[PackedSequence]) -> TokenWindows:
    """Stack windows whose documents do not attend to each other."""
    documents = np.stack([window.boundaries.document_ids for window in windows])
    return TokenWindows(_tokens(windows), torch.from_numpy(documents))


def stack_running(windows: list[PackedSequence]) -> TokenWindows:
    """Stack windows of documents that follow one another and attend to those before."""
    return TokenWindows(_tokens(windows), None)


def next_token_batch(windows: TokenWindows) -> TokenBatch:
    """Return inputs and targets: each token predicts the next one, unless that begins a document
    which it does not attend to."""
    (inputs, targets), documents = shifted(windows.tokens), windows.documents
    if documents is None:
        return TokenBatch(inputs, targets, None)
    is_other = documents[:, 1:] != documents[:, :-1]
    return TokenBatch(inputs, targets.masked_fill(is_other, PADDING), documents[:, :-1])


def count_of(targets: Tensor) -> Tensor:
    """Return the number of `targets` that are no padding, on their device."""
    return (targets != PADDING).sum()


def shifted(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, where each token predicts the next one.

    Args:
        tokens: (batch, time + 1).

    Returns:
        Two of (batch, time); padding stays in the targets alone, where it counts for nothing.
    """
    return tokens[:, :-1].clamp(min=0), tokens[:, 1:]


def _tokens(windows: list[PackedSequence]) -> Tensor:
    return torch.from_numpy(np.stack([window.tokens for window in windows]))
