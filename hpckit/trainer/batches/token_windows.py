"""Batches of token windows, in the form in which a loader stacks them and in which a model takes
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

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
    """(batch, time + 1) numbers of documents. Contiguous tokens with the same number are of one
    document, and do not attend to others. None: tokens attend to all tokens before them."""
    sources: Tensor | None = None
    """(batch, time + 1) numbers of the sources of a mixture, -1 for padding. None: there is no
    mixture of packed documents."""
    offsets: Tensor | None = None
    """(batch, documents + 1): the beginning of each document in the inputs of its window, then the
    number of inputs as often as there is room; as `document_offsets` takes it. None: attention
    separates documents by a mask."""

    def to(self, device: torch.device) -> TokenWindows:
        """Return the same on `device`, without waiting for the copies."""
        moved = (
            None if one is None else one.to(device, non_blocking=True)
            for one in (self.documents, self.sources, self.offsets)
        )
        return TokenWindows(self.tokens.to(device, non_blocking=True), *moved)


class TokenBatch(NamedTuple):
    """The inputs and targets of a model; each is (batch, time)."""

    inputs: Tensor
    """Tokens."""
    targets: Tensor
    """The tokens that come next; `PADDING` where there is none."""
    documents: Tensor | None
    """The numbers of documents, or the offsets if there are some, as of `TokenWindows`."""


def stack(windows: list[Ints]) -> TokenWindows:
    """Stack windows of equal length that hold one document each."""
    return TokenWindows(torch.from_numpy(np.stack(windows)), None)


def stack_separated(windows: list[PackedSequence]) -> TokenWindows:
    """Stack windows whose documents do not attend to each other."""
    documents = np.stack([window.boundaries.document_ids for window in windows])
    return TokenWindows(_tokens(windows), torch.from_numpy(documents))


def stack_offsets(windows: list[PackedSequence]) -> TokenWindows:
    """Stack windows whose documents are separated by their offsets. The number of offsets is a
    power of two, so that kernels and compiled code meet few different ones."""
    inputs = len(windows[0].tokens) - 1
    most = max(len(window.boundaries.cu_seqlens) for window in windows)
    offsets = np.full((len(windows), 1 << (most - 1).bit_length()), inputs, np.int32)
    for row, window in zip(offsets, windows, strict=True):
        begins = window.boundaries.cu_seqlens
        row[: len(begins)] = np.minimum(begins, inputs)
    return stack_separated(windows)._replace(offsets=torch.from_numpy(offsets))


def stack_contiguous(windows: list[PackedSequence]) -> TokenWindows:
    """Stack windows whose tokens attend to all tokens before them, including those of earlier
    documents."""
    return TokenWindows(_tokens(windows), None)


def next_token_batch(windows: TokenWindows) -> TokenBatch:
    """Return inputs and targets. Each token predicts the next one, except where the next one begins
    another document to which tokens do not attend."""
    (inputs, targets), documents = shifted(windows.tokens), windows.documents
    if documents is None:
        return TokenBatch(inputs, targets, None)
    is_other = documents[:, 1:] != documents[:, :-1]
    separated = documents[:, :-1] if windows.offsets is None else windows.offsets
    return TokenBatch(inputs, targets.masked_fill(is_other, PADDING), separated)


def stack_with_sources(
    stacked_by: Callable[[list[PackedSequence]], TokenWindows], windows: list[PackedSequence]
) -> TokenWindows:
    """Stack windows by `stacked_by`, with the source of each token."""
    stacked = stacked_by(windows)
    numbers = np.full(stacked.tokens.shape, -1, np.int64)
    for row, window in zip(numbers, windows, strict=True):
        ends = window.boundaries.cu_seqlens.tolist()
        for source, begin, end in zip(window.datasets, ends, ends[1:], strict=False):
            row[begin:end] = source
    return stacked._replace(sources=torch.from_numpy(numbers))


def count_of(targets: Tensor) -> Tensor:
    """Return the number of `targets` that are not padding, as a tensor on their device."""
    return (targets != PADDING).sum()


def shifted(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, where each token predicts the next one.

    Args:
        tokens: (batch, time + 1).

    Returns:
        Two tensors (batch, time). Padding is kept only in the targets, where the loss ignores it.
    """
    return tokens[:, :-1].clamp(min=0), tokens[:, 1:]


def _tokens(windows: list[PackedSequence]) -> Tensor:
    return torch.from_numpy(np.stack([window.tokens for window in windows]))


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
