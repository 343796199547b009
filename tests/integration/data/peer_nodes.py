"""Nodes of a job that share their caches: here each is a folder, with a server of its own in this
process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from data.cache.peers.cache_peers import CachePeers
from data.cache.peers.peer_group import PeerPatience

LOOPBACK = "127.0.0.1"
PATIENT = PeerPatience(connect_s=60.0, silent_s=60.0, stalled_s=60.0, slow_s=60.0, suspect_s=600.0)
"""No node fails because the machine is busy."""


class LocalExchange:
    """Gathers values from as many threads as a job has processes."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self._values: list[Any] = [None] * count

    def of(self, number: int) -> Callable[[Any], Sequence[Any]]:
        def exchange(value: Any) -> Sequence[Any]:
            self._values[number] = value
            self._barrier.wait(60)
            found = list(self._values)
            self._barrier.wait(60)
            return found

        return exchange


def connected(
    folders: Sequence[Path],
    patience: PeerPatience = PATIENT,
    address: str = LOOPBACK,
    nodes: Sequence[str] = (),
) -> list[CachePeers]:
    """Connect the caches in these folders, each as a node."""
    names = list(nodes) or [f"node{number}" for number in range(len(folders))]
    exchange = LocalExchange(len(folders))

    def connect(number: int) -> CachePeers:
        return CachePeers.connect(
            folders[number],
            exchange.of(number),
            address=address,
            node=names[number],
            patience=patience,
        )

    with ThreadPoolExecutor(len(folders)) as pool:
        return list(pool.map(connect, range(len(folders))))
