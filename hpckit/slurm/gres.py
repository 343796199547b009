"""Reads the GPUs of nodes from their Gres."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from hpckit.slurm.cluster_config import Record

_SOCKETS = re.compile(r"\([^)]*\)")
_GPU = re.compile(r"(?:^|,)gpu(?::([^:,]+))?:(\d+)(?=,|$)")

Kind = tuple[str, int]
"""Type of the GPUs ("" if unknown) and their number in a node."""


def kinds_of(gres: str) -> list[Kind]:
    """Parses a text such as "gpu:a100:4(S:0-1),nvme:1"."""
    return [(kind, int(count)) for kind, count in _GPU.findall(_SOCKETS.sub("", gres))]


def kinds_of_nodes(nodes: Iterable[Record]) -> list[tuple[Kind, int]]:
    """Returns the kinds of GPUs and the number of nodes with each, the most frequent first."""
    counts = Counter(kind for node in nodes for kind in kinds_of(node.get("Gres", "")))
    return counts.most_common()


def in_words(kind: Kind) -> str:
    """Returns a text such as "4 x a100"."""
    return f"{kind[1]} x {kind[0] or 'GPU'}"
