"""One node of a job as a process of its own, which shares its cache; run as a program.

Its standard input and output are the exchange between the nodes, and after that the commands: a
line of JSON each way.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from data.cache.peers.cache_peers import CachePeers
from data.source.sources import Sources
from tests.integration.data.peer_nodes import LOOPBACK, PATIENT
from tests.services.processes import bound


@dataclass
class NodeProcess:
    """The process, as its parent sees it."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, cache: Path, node: str) -> NodeProcess:
        command = [sys.executable, "-m", "tests.integration.data.peer_node_process"]
        return cls(
            subprocess.Popen(
                bound([*command, str(cache), node]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    def take_part(self, exchange: Callable[[Any], Sequence[Any]]) -> None:
        """Pass on what it gives and gets, until it is connected."""
        while (value := self.receive()) != "connected":
            self.send(list(exchange(value)))

    def fetch(self, refs: Sequence[ShardRef], downloads: int = 4) -> None:
        """Have it fetch shards; `receive` then waits for its counters."""
        self.send([downloads, *(vars(ref) for ref in refs)])

    def send(self, value: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        return json.loads(line)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def main() -> None:
    cache, node = sys.argv[1:]

    def exchange(value: Any) -> Any:
        print(json.dumps(value), flush=True)
        return json.loads(sys.stdin.readline())

    peers = CachePeers.connect(cache, exchange, address=LOOPBACK, node=node, patience=PATIENT)
    with NodeStore(Path(cache), 10**10, sources=Sources(), free_reserve=0, peers=peers) as store:
        print(json.dumps("connected"), flush=True)
        for line in sys.stdin:
            downloads, *refs = json.loads(line)
            began_s = time.monotonic()
            with ThreadPoolExecutor(downloads) as pool:
                list(pool.map(lambda ref: store.prefetch(ShardRef(**ref), when_s=0.0), refs))
            seconds = time.monotonic() - began_s
            print(json.dumps({**store.metrics.counts(), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
