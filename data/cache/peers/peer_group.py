"""The nodes of a job that share their caches, and what a transfer between them may take."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PeerNode:
    """A node of the group, with the address of its shard server."""

    name: str
    address: str
    port: int


@dataclass(frozen=True)
class PeerGroup:
    """The nodes of one generation of a job."""

    id: str
    nodes: tuple[PeerNode, ...]
    me: int
    """The index of this node in `nodes`."""

    key: bytes = field(repr=False)
    """32 random bytes by which the nodes prove themselves."""


@dataclass(frozen=True)
class PeerPatience:
    """How long a download waits for other nodes before it goes on at the source."""

    connect_s: float = 2.0
    """Seconds for connecting and for the proof of the key."""

    silent_s: float = 3.0
    """Seconds without a message. A node that has nothing to send says so twice a second, so that
    one that is stopped differs from one that waits for its own source."""

    stalled_s: float = 10.0
    """Seconds without a new byte of the shard."""

    slow_s: float = 5.0
    slow_bytes_per_s: float = 1e6
    """The rate below which a node that has more to send is given up, after `slow_s` seconds of
    it."""

    lost_s: float = 10.0
    """Seconds lost at nodes that failed after which a shard is fetched from its source without
    asking further ones."""

    suspect_s: float = 60.0
    """Seconds for which a node that failed is not asked for anything."""


@dataclass
class PeerPace:
    """The pace of a node that sends a shard, as its receiver sees it."""

    patience: PeerPatience
    began_s: float
    _progress_s: float = field(init=False)
    _busy_s: float = 0.0
    """Seconds in which it had more to send."""

    _busy_bytes: int = 0

    def __post_init__(self) -> None:
        self._progress_s = self.began_s

    def problem(self, now_s: float, size: int, spent_s: float, *, has_more: bool) -> str | None:
        """Return why to give the node up, or None.

        Args:
            size: new bytes.
            spent_s: the seconds that they took.
            has_more: whether the node had more bytes than these.
        """
        patience = self.patience
        if size:
            self._progress_s = now_s
        if now_s - self._progress_s >= patience.stalled_s:
            return f"no byte of the shard came for {patience.stalled_s:.0f} s"
        if has_more:
            self._busy_s, self._busy_bytes = self._busy_s + spent_s, self._busy_bytes + size
        if self._busy_s < patience.slow_s:
            return None
        rate = self._busy_bytes / self._busy_s
        self._busy_s, self._busy_bytes = 0.0, 0
        if rate >= patience.slow_bytes_per_s:
            return None
        return f"it sends {rate / 1e6:.2g} MB/s"
