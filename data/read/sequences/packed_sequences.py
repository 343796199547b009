"""What a loader delivers of packed documents: sequences and the boundaries of their documents."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from data.order.document_boundaries import Boundaries

Tokens: TypeAlias = npt.NDArray[Any]


class PackedSequence(NamedTuple):
    """One sequence; `collate` is given a list of these."""

    tokens: Tokens
    """Shape (length,)."""
    boundaries: Boundaries
    datasets: tuple[int, ...] = ()
    """The number of each document's dataset, where several are mixed."""


class Sequences(NamedTuple):
    """A batch of B sequences of L tokens, made by the default `collate`."""

    tokens: Tokens
    """Shape (B, L)."""
    document_ids: npt.NDArray[np.int32]
    """Shape (B, L): tokens attend to equal ids of their sequence only; -1 is padding."""
    position_ids: npt.NDArray[np.int32]
    """Shape (B, L): counts from 0 in each document."""
    cu_seqlens: npt.NDArray[np.int32]
    """The start of each document in the B * L tokens end to end, then B * L; padding counts as a
    document."""
    max_seqlen: int
    """The longest document, in tokens."""


def sequences(packed: list[PackedSequence]) -> Sequences:
    """Collate sequences of one length (the default `collate`)."""
    lines = [one.boundaries for one in packed]
    length = len(packed[0].tokens)
    begins = [line.cu_seqlens[:-1] + number * length for number, line in enumerate(lines)]
    return Sequences(
        tokens=np.stack([one.tokens for one in packed]),
        document_ids=np.stack([line.document_ids for line in lines]),
        position_ids=np.stack([line.position_ids for line in lines]),
        cu_seqlens=np.append(np.concatenate(begins), len(packed) * length).astype(np.int32),
        max_seqlen=max(line.max_seqlen for line in lines),
    )
