"""Attention within the documents of a window, which do not attend to each other: by a mask, or by
the offsets of the documents."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class DocumentMask(NamedTuple):
    """What separates documents in attention, and their positions."""

    mask: Tensor | None
    """(batch, 1, time, time), which is added to the scores of attention: 0 for tokens that are
    attended to, minus infinity for the others. All heads and blocks share it. Its memory grows with
    the square of `time`, and kernels compute the masked scores too, which is up to twice the work
    of causal attention without a mask. None: there are offsets."""
    positions: Tensor
    """(batch, time): positions of the tokens within their documents, from 0 on."""
    offsets: Tensor | None = None
    """(documents + 1,) int32: the beginning of each document among the batch x time tokens, and
    their number (`cu_seqlens`). Some documents are empty."""


def positions_within(documents: Tensor) -> Tensor:
    """Return the positions of tokens within their documents, from 0 on; both (batch, time),
    documents as of `DecoderModel`."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    places = torch.arange(documents.shape[1], device=documents.device)
    return places - torch.where(begins, places, 0).cummax(1).values


def document_mask(positions: Tensor, dtype: torch.dtype) -> DocumentMask:
    """Return the mask of tokens at `positions` of their documents, (batch, time), in a dtype."""
    places = torch.arange(positions.shape[1], device=positions.device)
    first = places - positions
    hidden = (places[:, None] < places) | (first[:, :, None] != first[:, None])
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return DocumentMask(mask.masked_fill_(hidden, -math.inf)[:, None], positions)


def document_offsets(rows: Tensor, time: int) -> DocumentMask:
    """Return what separates the documents of windows of `time` tokens.

    Args:
        rows: (batch, documents + 1) int32: the beginning of each document in its window, then
            `time` as often as there is room.
    """
    places = torch.arange(time, device=rows.device, dtype=rows.dtype).expand(len(rows), -1)
    numbers = torch.searchsorted(rows, places.contiguous(), right=True) - 1
    first = torch.arange(len(rows), device=rows.device, dtype=rows.dtype)[:, None] * time
    ends = torch.full((1,), len(rows) * time, device=rows.device, dtype=rows.dtype)
    offsets = torch.cat(((rows[:, :-1] + first).flatten(), ends))
    return DocumentMask(None, places - rows.gather(1, numbers), offsets)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: DocumentMask | None,
    *,
    is_causal: bool = True,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the attention of queries to keys, each (batch, heads, time, head width).

    Args:
        mask: None: there are no documents; tokens attend to those before them if `is_causal`.
        enable_gqa: whether several query heads share a key and value head.
    """
    if mask is None or mask.offsets is None:
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask.mask if mask else None,
            is_causal=is_causal and mask is None,
            enable_gqa=enable_gqa,
        )
    by = _by_kernel if query.is_cuda else _one_by_one
    found = by(
        query.transpose(1, 2).flatten(0, 1),
        key.transpose(1, 2).flatten(0, 1),
        value.transpose(1, 2).flatten(0, 1),
        mask.offsets,
        query.shape[2],
        enable_gqa,
    )
    return found.view(len(query), -1, *found.shape[1:]).transpose(1, 2)


def _by_kernel(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int, enable_gqa: bool
) -> Tensor:
    """Return the attention within documents by flash attention of sequences of varying length."""
    from torch.nn.attention.varlen import varlen_attn  # with these options since torch 2.12

    found = varlen_attn(
        query,
        key,
        value,
        offsets,
        offsets,
        longest,
        longest,
        window_size=(-1, 0),
        enable_gqa=enable_gqa,
    )
    assert isinstance(found, Tensor)  # more is returned only where it is asked for
    return found


def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int, enable_gqa: bool
) -> Tensor:
    """Return the same, one document after the other: each (tokens, heads, head width)."""
    parts = [
        functional.scaled_dot_product_attention(
            query[begin:end].transpose(0, 1)[None],
            key[begin:end].transpose(0, 1)[None],
            value[begin:end].transpose(0, 1)[None],
            is_causal=True,
            enable_gqa=enable_gqa,
        )[0].transpose(0, 1)
        for begin, end in pairwise(offsets.tolist())
        if begin < end
    ]
    return torch.cat(parts)
