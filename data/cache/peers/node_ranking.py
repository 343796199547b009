"""The order in which nodes are asked about a shard: rendezvous hashing, a pure function.

D. G. Thaler, C. V. Ravishankar, "A name-based mapping scheme for rendezvous", University of
Michigan, 1996: if a node is lost, only the shards that it tracked get another tracker, and all
nodes agree which.
"""

from collections.abc import Sequence

from blake3 import blake3


def ranked_nodes(shard: str, nodes: Sequence[str]) -> list[int]:
    """Return the indexes of the nodes with these names, the tracker of the shard first, and then
    those that replace it, in order."""

    def weight(index: int) -> bytes:
        return blake3(f"{shard}\0{nodes[index]}".encode()).digest(8)

    return sorted(range(len(nodes)), key=lambda index: (weight(index), nodes[index]))
