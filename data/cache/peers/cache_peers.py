"""Connects the caches of the nodes of one job."""

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from checkpointing.authenticated_channel import KEY_BYTES
from data.cache.files.cache_folder import CacheFolder
from data.cache.peers.peer_client import PeerClient
from data.cache.peers.peer_group import PeerGroup, PeerNode, PeerPatience
from data.cache.peers.shard_server import ShardServer
from data.cache.space import space_reservation
from data.errors import DataError

Exchange: TypeAlias = Callable[[Any], Sequence[Any]]
"""Returns what each process of the job has given, in the same order on all of them, as
`torch.distributed.all_gather_object` does. What is given is a dict of texts and numbers."""

ALL_ADDRESSES = ("", "*", "0.0.0.0", "::", "[::]")

_log = logging.getLogger(__name__)


class CachePeers:
    """The caches of the nodes of a job, which fetch each shard once from its source and get it from
    each other.

    Created by `connect`, and given to `open_dataset` or `NodeStore`. It may be pickled for
    processes of the same node, with the key of the job.
    """

    def __init__(
        self,
        folder: Path,
        client: PeerClient | None,
        server: ShardServer | None = None,
        problem: str | None = None,
    ) -> None:
        self.folder = folder
        self.client = client
        self.problem = problem
        """Why caches are not shared; None if they are."""
        self._server = server

    @classmethod
    def connect(
        cls,
        cache: str | Path,
        exchange: Exchange,
        *,
        address: str | None,
        node: str,
        patience: PeerPatience | None = None,
    ) -> "CachePeers":
        """Connect the caches of all nodes, for the life of the processes that take part. Every
        process of the job has to call it: it is a collective.

        On each node, one process answers the others, by threads. If one of them cannot listen, all
        processes go on without peers; `problem` and the log say why.

        Args:
            cache: the folder of the cache on this node's own disk.
            exchange: gathers a value from all processes; see `Exchange`. The key of the job passes
                through it.
            address: the address of this node by which the others reach it. The server listens at
                this address alone. None: it is not known, so that caches are not shared.
            node: the name of this node: the same in all its processes, and unique among nodes.
            patience: how long to wait for other nodes.

        Raises DataError for an address that stands for all interfaces.
        """
        if address in ALL_ADDRESSES:
            raise DataError(
                f"address {address!r} stands for all network interfaces: give the one address at "
                "which the other nodes of the job reach this node"
            )
        folder = CacheFolder(Path(cache).absolute())
        me = secrets.token_hex(8)
        mine: dict[str, Any] = {"node": node, "process": me}
        server, problem = None, None
        if _is_first(exchange(mine), mine):
            try:
                server = _listen(address, folder)
                mine |= {"address": server.address, "port": server.port}
            except DataError as error:
                mine |= {"problem": f"node {node}: {error}"}
        mine |= {"id": secrets.token_hex(8), "key": secrets.token_hex(KEY_BYTES)}
        rows = list(exchange(mine))
        problem = next((str(row["problem"]) for row in rows if "problem" in row), None)
        is_alone = len({row["node"] for row in rows}) == 1
        if is_alone:
            problem = "there is only one node"
        if problem is not None:
            level = logging.INFO if is_alone else logging.WARNING
            _log.log(level, "the nodes do not share their caches: %s", problem)
            if server is not None:
                server.close()
            return cls(folder.root, None, problem=problem)
        group = group_of(rows, node)
        client = PeerClient(group, patience or PeerPatience())
        if server is not None:
            server.start(group)
        exchange({})  # from here on all servers answer
        if server is not None:
            client.hold(_whole_shards(folder))
        exchange({})  # from here on all trackers know what the caches have
        return cls(folder.root, client, server)

    @property
    def bytes_sent(self) -> int:
        """Bytes of shards that this process has sent to other nodes."""
        return 0 if self._server is None else self._server.bytes_sent

    def close(self) -> None:
        """Stop answering other nodes, which then fetch from their source what only this one has."""
        if self._server is not None:
            self._server.close()

    def __reduce__(self) -> tuple[Callable[..., "CachePeers"], tuple[Any, ...]]:
        """Pickle for another process of this node, which asks and does not answer."""
        if self.client is None:
            return CachePeers, (self.folder, None, None, self.problem)
        return _reopened, (self.folder, self.client.group, self.client.patience)


def group_of(rows: Sequence[Mapping[str, Any]], node: str) -> PeerGroup:
    """Return the group of the processes that have given these rows, as a process of `node` sees it.
    The first row has the key that counts."""
    nodes = tuple(
        PeerNode(str(row["node"]), str(row["address"]), int(row["port"]))
        for row in rows
        if "port" in row
    )
    names = [one.name for one in nodes]
    me = names.index(node) if node in names else 0
    return PeerGroup(str(rows[0]["id"]), nodes, me, bytes.fromhex(rows[0]["key"]))


def _is_first(rows: Sequence[Mapping[str, Any]], mine: Mapping[str, Any]) -> bool:
    """Return whether this process is the first one of its node."""
    first = next(row for row in rows if row["node"] == mine["node"])
    return bool(first["process"] == mine["process"])


def _listen(address: str | None, folder: CacheFolder) -> ShardServer:
    if address is None:
        raise DataError("the address at which other nodes reach it is not known")
    return ShardServer(address, folder)


def _reopened(folder: Path, group: PeerGroup, patience: PeerPatience) -> CachePeers:
    return CachePeers(folder, PeerClient(group, patience))


def _whole_shards(folder: CacheFolder) -> list[str]:
    try:
        found = space_reservation.cached_files(folder)
    except OSError:  # there is no cache yet, or its disk fails, which its first use reports
        return []
    return [one.entry.stem for one in found if one.kind == "shard"]
