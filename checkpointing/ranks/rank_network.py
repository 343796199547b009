"""Connections between the ranks of a job, each made when it is first used.

Every rank listens at one port and publishes its address in the store in which the ranks have met,
where rank 0 publishes a random key. Of two ranks the higher one connects to the lower one, and both
prove that they know the key. So a rank has as many connections as it uses, and not one to each
other rank, as in a process group of gloo.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from checkpointing.authenticated_channel import (
    CHUNK,
    HANDSHAKE_S,
    KEY_BYTES,
    AuthenticatedChannel,
    ChannelHello,
    connect_channel,
    new_hello,
)
from checkpointing.channel_listener import ChannelListener
from checkpointing.errors import OtherRankError, ServiceError
from checkpointing.ranks.peer_address import (
    LOOPBACK,
    VARIABLE,
    NetworkLocation,
    network_location,
    route,
)

log = logging.getLogger("checkpointing")

UNREACHABLE_S = 120.0
"""Seconds after which a rank that has published its address and does not answer there has ended."""
HAS_ENDED = "another rank has ended: "
"""How each message begins that names a rank that has ended."""
_ASK_S = 1.0  # between two looks whether a rank that has not connected has published that it cannot
_RETRY_S, _MOST_RETRY_S = 0.02, 1.0  # between two attempts to connect, at first and at most
_CLOSED = (
    "the connections to the other ranks are closed: they were closed on this rank, or belong to "
    "the process that this one was forked from"
)
_PAIR = "pair"  # purpose of what two ranks send each other
_SIZE = struct.Struct("<Q")
_REASON_S = 5.0  # within which a rank learns which other one has ended
_BACKLOG = 1024  # connections that the system keeps until they are accepted
# Seconds without traffic after which the system asks whether the other machine is there, and how
# often: a machine that has lost its power closes no connection.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


# Of stores of torch ("wait timeout after 1000ms") and its collectives.
_TIMEOUT_WORDS = re.compile(r"\btime(d )?out\b", re.IGNORECASE)


class MeetingStore(Protocol):
    """What is used of a store of torch.distributed."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


@dataclass(frozen=True)
class RankAddress:
    """Where a rank listens. Plain data, which is sent between ranks.

    Attributes:
        id: of the network of ranks, as rank 0 had published it; that of a job before may be found.
        host: an address, or "" for the node of MASTER_ADDR.
        network: the same where processes share one loopback interface.
        problem: why the rank does not listen; None: it does.
    """

    id: str
    host: str = ""
    port: int = 0
    network: str = ""
    problem: str | None = None


class RankNetwork:
    """The connections of one rank. `connect` may be called by several threads, for different
    purposes or ranks."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: MeetingStore,
        timeout_s: float,
        *,
        name: str = "ranks",
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """Listen, and publish the address. The constructor waits for rank 0.

        Args:
            store: where the ranks of this network have met; no other open network uses it while
                `is_current`.
            timeout_s: seconds that this rank waits for another one.
            name: what reports of hangs call the network, the same on all ranks.
            is_current: whether ranks may still connect; called by any thread.

        Raises:
            OtherRankError: rank 0 has ended, or did not come in time.
            ServiceError: there is no address to listen at.
        """
        self.rank, self.world_size, self.timeout_s = rank, world_size, timeout_s
        self.name = name
        self._store, self._is_current = store, is_current
        self._channels: dict[tuple[int, str], AuthenticatedChannel] = {}
        self._changed = threading.Condition()
        self._failure: str | None = None
        self._is_closed = False
        if rank == 0:
            mine = {"id": secrets.token_hex(8), "key": secrets.token_hex(KEY_BYTES)}
            self._publish("network", mine)
        self._read_key()
        try:
            here = network_location()
            sock, host = _listening(here)
        except Exception as error:
            with suppress(OtherRankError):  # this rank has an error of its own
                self._publish(f"address/{rank}", asdict(RankAddress(self._id, problem=str(error))))
            raise
        self._here = here.network
        self._listener = ChannelListener(
            sock,
            self._key_of,
            self._keep,
            name="ranks",
            refuse=lambda: None,
            patience_s=HANDSHAKE_S,
        )
        self._listener.start()
        _open_networks.add(self)
        address = RankAddress(self._id, host, int(sock.getsockname()[1]), here.network)
        try:
            self._publish(f"address/{rank}", asdict(address))
        except BaseException:
            self.close()
            raise

    def connect(self, rank: int, purpose: str) -> AuthenticatedChannel:
        """Returns the connection to another rank for a purpose, which that rank names as well.

        Raises:
            OtherRankError: it has ended, or did not connect within `timeout_s`; or the network has
                failed, see `fail`.
        """
        with self._changed:
            self._check()
            if (found := self._channels.get((rank, purpose))) is not None:
                return found
        if rank > self.rank:
            return self._await(rank, purpose)
        channel = self._dial(rank, purpose)
        with self._changed:
            self._channels[rank, purpose] = channel
            if self._failure is not None or self._is_closed:
                channel.hang_up()
            self._check()
        return channel

    def send(self, rank: int, body: bytes) -> None:
        """Send bytes to another rank, which receives them.

        Raises:
            OtherRankError: it has ended, or did not answer in time.
        """
        with self._broken_off(rank) as channel:
            channel.send_bytes(_SIZE.pack(len(body)))
            channel.send_long(body)

    def receive(self, rank: int) -> bytes:
        """Returns the bytes that another rank sends. Raises as `send`."""
        with self._broken_off(rank) as channel:
            return channel.receive_long(self._size(channel))

    def send_content(self, rank: int, body: memoryview) -> None:
        """Send the content of tensors to another rank, which knows its size. Damage is detected; it
        is not proved who has sent it. Raises as `send`."""
        with self._broken_off(rank) as channel:
            channel.send_bytes(_SIZE.pack(len(body)))
            for at in range(0, len(body), CHUNK):
                channel.send_checked(body[at : at + CHUNK])

    def receive_content(self, rank: int, into: memoryview) -> None:
        """Receive the content of tensors from another rank. Raises as `send`."""
        with self._broken_off(rank) as channel:
            if (size := self._size(channel)) != len(into):
                raise ServiceError(f"{size:,} bytes came where {len(into):,} were expected")
            done = 0
            while done < size:
                done += channel.receive_checked(into[done:])

    def _size(self, channel: AuthenticatedChannel) -> int:
        head = channel.receive_bytes()
        if len(head) != _SIZE.size:
            raise ServiceError("ranks do not send and receive the same")
        return int(_SIZE.unpack(head)[0])

    @contextmanager
    def _broken_off(self, rank: int) -> Iterator[AuthenticatedChannel]:
        """Gives the connection to a rank; one that is left in the middle is closed."""
        channel = self.connect(rank, _PAIR)
        try:
            yield channel
        except BaseException as error:
            channel.hang_up()
            if isinstance(error, ConnectionError | ServiceError):
                raise OtherRankError(self._reason(rank, error)) from error
            raise

    def _reason(self, rank: int, error: Exception) -> str:
        guess = f"{HAS_ENDED}rank {rank} ({error})"
        return self.reason(guess) if isinstance(error, ConnectionError) else self.failure or guess

    def reason(self, guess: str) -> str:
        """Returns why the connection to a rank has ended. It may have ended because a third one
        has, of which this rank learns soon; else it is as guessed."""

        def is_known() -> bool:
            return self._failure is not None or self._is_closed

        with self._changed:
            self._changed.wait_for(is_known, _REASON_S)
            return self.failure or guess

    def fail(self, why: str, kept: Iterable[AuthenticatedChannel] = ()) -> None:
        """Have all present and later calls that wait for another rank raise OtherRankError.

        Args:
            kept: connections that are not closed, as they say why.
        """
        with self._changed:
            if self._failure is None:
                self._failure = why
            channels = {*self._channels.values()} - {*kept}
            self._changed.notify_all()
        for channel in channels:
            channel.hang_up()

    @property
    def failure(self) -> str | None:
        """Why the network is of no use any more; None: it is."""
        return self._failure or (_CLOSED if self._is_closed else None)

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        with self._changed:
            self._is_closed = True
            channels = list(self._channels.values())
            self._channels.clear()
            self._changed.notify_all()
        _open_networks.discard(self)
        self._listener.close()
        for channel in channels:
            channel.close()

    def after_fork(self) -> None:
        """Close the sockets in a forked child, so that the end of its parent is noticed by the
        other ranks although the child lives on."""
        self._changed = threading.Condition()  # a thread of the parent may have held it
        self._is_closed = True
        self._listener.after_fork()
        for channel in self._channels.values():
            channel.forget()
        self._channels = {}

    def _check(self) -> None:
        if (why := self.failure) is not None:
            raise OtherRankError(why)

    def _await(self, rank: int, purpose: str) -> AuthenticatedChannel:
        """Returns the connection that the other rank makes."""

        def is_over() -> bool:
            has_failed = self._failure is not None or self._is_closed
            return has_failed or (rank, purpose) in self._channels

        until_s, listens = time.monotonic() + self.timeout_s, False
        while True:
            left_s = until_s - time.monotonic()
            with self._changed:
                self._changed.wait_for(
                    is_over, max(0.0, left_s if listens else min(left_s, _ASK_S))
                )
                self._check()
                if (found := self._channels.get((rank, purpose))) is not None:
                    return found
            if left_s <= 0:
                raise OtherRankError(
                    f"another rank did not answer in time: rank {rank} has not connected to rank "
                    f"{self.rank} within {self.timeout_s:,g} s"
                )
            listens = listens or self._listens(rank)

    def _listens(self, rank: int) -> bool:
        """Whether it is known that a rank listens. Raises OtherRankError if it cannot."""
        there: RankAddress | None = None
        with suppress(RuntimeError):  # the store is gone: then it is not known
            if self._store.check([f"address/{rank}"]):
                there = self._address(rank)
        if there is None or there.id != self._id:
            return False
        self._require(rank, there)
        return True

    def _require(self, rank: int, there: RankAddress) -> None:
        """Raise OtherRankError if a rank of this network has published that it cannot listen."""
        if there.problem is not None and there.id == self._id:
            raise OtherRankError(f"another rank cannot take part: rank {rank}: {there.problem}")

    def _dial(self, rank: int, purpose: str) -> AuthenticatedChannel:
        pause_s, until_s = _RETRY_S, float("inf")
        while True:
            there = self._address(rank)  # this may wait until the rank has published it
            until_s = min(until_s, time.monotonic() + UNREACHABLE_S)
            self._require(rank, there)
            host, port = self._host(there), there.port
            hello = new_hello(self._id, self.rank, rank, purpose)
            try:
                channel = connect_channel(host, port, self._key, hello, 2 * HANDSHAKE_S)
                self._prepare(channel)
                try:
                    channel.receive()  # the other side has kept it
                except BaseException:
                    channel.close()
                    raise
                return channel
            except (ConnectionError, ServiceError) as error:
                if getattr(error.__cause__, "errno", None) in (errno.EMFILE, errno.ENFILE):
                    raise ServiceError(
                        f"rank {self.rank} cannot connect to rank {rank}: {error.__cause__}; raise "
                        "the limit (ulimit -n)"
                    ) from error
                if time.monotonic() > until_s:
                    raise OtherRankError(
                        f"{HAS_ENDED}rank {rank} does not answer at {host} port "
                        f"{port}: {error}; if it has not ended, set {VARIABLE} on each node to an "
                        "address at which the others reach it"
                    ) from error
            self._pause(pause_s)
            self._read_key()  # as a job before may have left its own in the same store
            pause_s = min(2 * pause_s, _MOST_RETRY_S)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._is_closed, seconds)
            self._check()

    def _publish(self, name: str, what: Mapping[str, object]) -> None:
        with report_other_rank():
            self._store.set(name, json.dumps(what))

    def _published(self, name: str) -> Any:
        with report_other_rank():
            return json.loads(self._store.get(name))

    def _read_key(self) -> None:
        found = self._published("network")
        self._id, self._key = str(found["id"]), bytes.fromhex(found["key"])

    def _address(self, rank: int) -> RankAddress:
        return RankAddress(**self._published(f"address/{rank}"))

    def _host(self, there: RankAddress) -> str:
        if there.host:
            return there.host
        return LOOPBACK if there.network == self._here else os.environ.get("MASTER_ADDR", LOOPBACK)

    def _key_of(self, hello: ChannelHello) -> bytes | None:
        if not self._is_current():  # a later network, whose key is not there yet, is meant
            return None
        if hello.generation != self._id:
            self._read_key()
        is_mine = hello.generation == self._id and hello.to == self.rank
        return self._key if is_mine and self.rank < hello.node < self.world_size else None

    def _keep(self, channel: AuthenticatedChannel, hello: ChannelHello) -> bool:
        """Keep a connection that another rank has made. It may have made one before, of which it
        has not heard that it was kept."""
        self._prepare(channel)
        try:
            channel.send({"kept": True})
        except ConnectionError:  # the other rank has ended, or connects again
            return False
        with self._changed:
            if self._is_closed or self._failure is not None:
                return False
            before = self._channels.get((hello.node, hello.role))
            self._channels[hello.node, hello.role] = channel
            self._changed.notify_all()
        if before is not None:
            before.hang_up()
        return True

    def _prepare(self, channel: AuthenticatedChannel) -> None:
        channel.set_timeout(self.timeout_s)
        channel.keep_alive(_KEEPALIVE)


@contextmanager
def report_other_rank() -> Iterator[None]:
    """Raises OtherRankError for the RuntimeError of torch.distributed in this block."""
    try:
        yield
    except RuntimeError as error:
        is_late = _TIMEOUT_WORDS.search(str(error)) is not None
        what = "did not answer in time" if is_late else "has ended"
        raise OtherRankError(f"another rank {what}: {error}") from error


_open_networks: weakref.WeakSet[RankNetwork] = weakref.WeakSet()


def _after_fork() -> None:
    for network in list(_open_networks):
        network.after_fork()
    _open_networks.clear()


os.register_at_fork(after_in_child=_after_fork)


def _listening(here: NetworkLocation) -> tuple[socket.socket, str]:
    """Returns a socket that listens, and the address at which other nodes reach it, or "": that of
    the node of MASTER_ADDR."""
    problems = []
    for host, published in _hosts(here, os.environ):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, 0), family=family, backlog=_BACKLOG), published
        except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
            problems.append(f"it cannot listen at {host!r}: {error}")
            log.warning("ranks cannot listen at %r: %s", host, error)
    raise ServiceError(
        f"node {here.node}: no address at which other ranks reach it: {'; '.join(problems)}; if "
        f"that address is wrong, set {VARIABLE} to one of its own on each node"
    )


def _hosts(here: NetworkLocation, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the addresses to listen at, best first, each with what is published of it. Pure but
    for a look-up of this machine's name."""
    if here.configured is not None:
        return [(here.configured, here.configured)]
    if here.routed is not None:
        return [(here.routed, here.routed)]
    master = env.get("MASTER_ADDR", "")
    is_alone = env.get("WORLD_SIZE") == env.get("LOCAL_WORLD_SIZE", "unknown")  # by torchrun
    if is_alone or master == "localhost" or master.startswith("127."):
        return [(LOOPBACK, LOOPBACK)]
    if master:  # a name of this node, for which it has a loopback address itself
        return [("", "")]
    own = route(socket.gethostname())
    return [*([(own, own)] if own is not None else []), (LOOPBACK, LOOPBACK)]
