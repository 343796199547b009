"""The boundaries of the documents in a packed sequence, as attention needs them."""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

_Small: TypeAlias = npt.NDArray[np.int32]


class Boundaries(NamedTuple):
    """The documents of one sequence of L tokens; the rest at its end is padding."""

    cu_seqlens: _Small
    """The start of each document, then L; padding counts as one more document (as kernels for
    attention over sequences of varying length need every token to be in one)."""
    max_seqlen: int
    document_ids: _Small
    """Shape (L,): 0, 1, ... for the documents, -1 for padding: tokens attend to equal ids only."""
    position_ids: _Small
    """Shape (L,): counts from 0 in each document and in the padding."""


def boundaries(lengths: npt.ArrayLike, length: int) -> Boundaries:
    """Return the boundaries in a sequence of `length` tokens that holds documents of `lengths`
    tokens.

    Raises ValueError if a length is below 1 or their sum above `length`.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    used = int(sizes.sum())
    if (sizes.size and int(sizes.min()) < 1) or used > length:
        raise ValueError(
            f"documents of {sizes.tolist()} tokens: each must have at least 1 token, "
            f"and all together at most {length}"
        )
    ids = np.arange(sizes.size)
    if used < length:
        sizes, ids = np.append(sizes, length - used), np.append(ids, -1)
    ends = np.cumsum(sizes)
    positions = np.arange(length) - np.repeat(ends - sizes, sizes)
    return Boundaries(
        cu_seqlens=np.append(0, ends).astype(np.int32),
        max_seqlen=int(sizes.max(initial=0)),
        document_ids=np.repeat(ids, sizes).astype(np.int32),
        position_ids=positions.astype(np.int32),
    )
