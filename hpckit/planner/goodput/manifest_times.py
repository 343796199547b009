"""The time that the manifest of a checkpoint takes a large job, by what was measured of its chunks.

The number of chunks is that of Llama 3 405B on 16 pipeline stages, and grows with the number of
ranks, as FSDP cuts each matrix into more rows (`benchmarks.store.store_scale --fsdp`).
"""

from __future__ import annotations

from checkpointing.format.item_table import MOST_GROUPS
from hpckit.planner.store_costs import CHUNK_ROW

WRITE_S = 1.27e-6
"""Processor seconds of one thread, for each chunk, in which the leader reads part records, merges
and encodes (`benchmarks.store.store_scale`: 0.45, 0.26 and 0.56 µs)."""
READ_S = 0.22e-6
"""Processor seconds for each chunk in which one rank of a node decodes it (the same)."""
_GROUPS = 5
"""Groups of tensors that a node of one of 16 pipeline stages needs, of 64."""


def chunks(ranks: int) -> float:
    """Return the number of chunks: as many of each rank up to 16,384 ranks; beyond, where rows of a
    rank are lower than a tile, one for each tile and for each of its cuts."""
    return min(1394 * ranks, 6.2e6 + 1017 * ranks)


def write_s(ranks: int) -> float:
    """Return the seconds in which one thread of one node commits a checkpoint."""
    return WRITE_S * chunks(ranks)


def read_s(ranks: int, nodes: int, store_gbps: float) -> float:
    """Return the seconds in which all nodes read their groups of tensors at the same time, and one
    rank of each decodes them."""
    of_node = chunks(ranks) * _GROUPS / MOST_GROUPS
    return nodes * of_node * CHUNK_ROW / store_gbps / 1e9 + of_node * READ_S
