"""Determines which ranks share a node."""

from __future__ import annotations

from checkpointing.ranks.peer_address import node_name
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.staging import host_memory


def ranks_on_node(ranks: RankGroup) -> frozenset[int]:
    """Returns all ranks on this rank's node, including itself. Collective."""
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
    """Raise if the memory does not fit on this node, before any rank allocates some. Collective.

    Args:
        here: the ranks of this node.
        slot_bytes: bytes that this rank will allocate for each slot; 0: none.
        is_bucketed: as for `host_memory.require`.

    Raises:
        StageError: there is not enough, on this node or another one.
    """
    slot_bytes_by_rank = ranks.all_gather(slot_bytes, ranks.control)
    taking = [slot_bytes_by_rank[rank] for rank in here if slot_bytes_by_rank[rank]]

    def require_here() -> None:
        if taking:
            host_memory.require(max(taking), slots, len(taking), is_bucketed=is_bucketed)

    ranks.all_or_none(require_here)
