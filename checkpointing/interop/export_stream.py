"""Reads a checkpoint chunk by chunk, for exports to other formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from checkpointing.errors import DamagedError
from checkpointing.format.tiles import Box
from checkpointing.storage import Buffer
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.read.chunk_copies import StoreCopies
from checkpointing.store.read.chunk_fetcher import ChunkFetcher, ChunkRequest

Use = Callable[[str, Box, Buffer], None]  # (tensor, box, its raw bytes); runs in any thread


def stream(
    checkpoint: Checkpoint,
    tensors: Iterable[str],
    use: Use,
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Call `use` with every chunk of some tensors, verified, in any order and in parallel; a few
    chunks are in memory at a time. A damaged chunk is read from another copy in the store.

    Args:
        on_bytes: called from this thread with the number of raw bytes processed.

    Raises:
        DamagedError: something cannot be read as it was written.
        StoreError: the store is unreachable.
    """
    store = checkpoint.store
    fetcher = ChunkFetcher(store.storage, StoreCopies([store]))
    damaged = fetcher.fetch(_wants(checkpoint, tensors, use), on_bytes)
    if damaged:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        raise DamagedError(f"{checkpoint.id} cannot be exported: {damaged[0]}{more}; repair it")


def _wants(checkpoint: Checkpoint, tensors: Iterable[str], use: Use) -> Iterator[ChunkRequest]:
    for name in tensors:
        table = checkpoint.table_with(name)
        dtype = table.tensors[name].dtype
        for box, chunk in table.chunks[name].items():
            yield ChunkRequest(chunk, dtype, name, partial(use, name, box))
