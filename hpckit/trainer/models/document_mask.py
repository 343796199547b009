"""The attention mask of a window of several documents, which do not attend to each other."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class DocumentMask(NamedTuple):
    """The attention mask and the positions that separate documents."""

    mask: Tensor
    """(batch, 1, time, time), which is added to the scores of attention: 0 for tokens that are
    attended to, minus infinity for the others. All heads and blocks share it. Its memory grows with
    the square of `time`, and kernels compute the masked scores too, which is up to twice the work
    of causal attention without a mask."""
    positions: Tensor
    """(batch, time): positions of the tokens within their documents, from 0 on."""


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
