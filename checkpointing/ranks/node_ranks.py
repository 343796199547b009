"""Which ranks share a node."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from checkpointing.ranks.rank_group import RankGroup
from checkpointing.staging import host_memory

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def node_name() -> str:
    """This node's, the same in all its processes and different from that of any other: HPCKIT_NODE
    where several nodes play on one machine, else host and boot."""
    if name := os.environ.get("HPCKIT_NODE"):
        return name
    boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
    return f"{socket.gethostname()}/{boot}"


def ranks_on_node(ranks: RankGroup) -> frozenset[int]:
    """All ranks on this rank's node, itself included. A collective."""
    names = ranks.all_gather(node_name(), ranks.control)
    return frozenset(rank for rank, name in enumerate(names) if name == names[ranks.rank])


def require_memory(
    ranks: RankGroup,
    here: frozenset[int],
    slot_bytes: int,
    slots: int,
    *,
    is_bucketed: bool = False,
) -> None:
    """Refuse memory that this node has not, before any of its ranks takes some. A collective.

    Args:
        here: this rank's neighbours.
        slot_bytes: that this rank is going to take for each slot; 0: nothing.
        is_bucketed: as of `hostmemory.require`.

    Raises:
        StageError: there is not enough, on this node or another one.
    """
    everybody = ranks.all_gather(slot_bytes, ranks.control)
    taking = [everybody[rank] for rank in here if everybody[rank]]

    def require_here() -> None:
        if taking:
            host_memory.require(max(taking), slots, len(taking), is_bucketed=is_bucketed)

    ranks.all_or_none(require_here)
