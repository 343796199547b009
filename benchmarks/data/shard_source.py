"""A loopback server of shards, in a process of its own."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.data.data_sets import Samples
from data.cache.files.cache_entry import ShardRef
from tests.services.range_server import range_server


@dataclass(frozen=True)
class ShardSource:
    """A server that runs."""

    url: str
    refs: list[ShardRef]
    """Its shards, whose indexes are beside them."""
    _pipe: Connection

    def set(self, **attributes: float | None) -> int:
        """Set attributes of its `RangeServer`; return the bytes that it has sent so far."""
        self._pipe.send(attributes)
        sent: int = self._pipe.recv()
        return sent


@contextmanager
def shard_source(samples: Samples, **attributes: float) -> Iterator[ShardSource]:
    """Start a server of these samples, with these attributes of its `RangeServer`."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=_serve, args=(theirs, samples, attributes))
    server.start()
    try:
        url, refs = ours.recv()
        yield ShardSource(url, refs, ours)
    finally:
        ours.send(None)
        server.join()


def _serve(pipe: Connection, samples: Samples, attributes: dict[str, float]) -> None:
    """Serve until None comes; what else comes are attributes."""
    with tempfile.TemporaryDirectory() as folder, range_server() as server:
        samples.write(Path(folder))
        files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
        for name, content in files.items():
            server.put(f"/{name}", content)
        tars = [name for name in files if name.endswith(".tar")]
        vars(server).update(attributes)
        refs = [ShardRef(f"{server.url}/{name}", len(files[name])) for name in tars]
        pipe.send((server.url, refs))
        while (changes := pipe.recv()) is not None:
            vars(server).update(changes)
            pipe.send(server.sent)
