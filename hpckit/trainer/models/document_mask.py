"""Documents that lie one after the other in a window, and do not see each other."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class DocumentMask(NamedTuple):
    """What keeps tokens inside their documents."""

    mask: Tensor
    """(batch, 1, time, time), added to the scores of attention: 0 for what a token looks at, minus
    infinity for the rest. One for all heads and blocks, which costs memory by the square of `time`;
    the kernels compute what it hides too, up to twice the work of causal attention without one."""
    positions: Tensor
    """(batch, time): each document counts from 0."""


def positions_within(documents: Tensor) -> Tensor:
    """Of tokens in their documents, from 0 on; both (batch, time), documents as of `Decoder`."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    places = torch.arange(documents.shape[1], device=documents.device)
    return places - torch.where(begins, places, 0).cummax(1).values


def document_mask(positions: Tensor, dtype: torch.dtype) -> DocumentMask:
    """Of tokens at `positions` of their documents, (batch, time), for features of a type."""
    places = torch.arange(positions.shape[1], device=positions.device)
    first = places - positions
    hidden = (places[:, None] < places) | (first[:, :, None] != first[:, None])
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return DocumentMask(mask.masked_fill_(hidden, -math.inf)[:, None], positions)
