"""Accepts the connections of other nodes, by `checkpointing.authenticated_channel`."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable

from checkpointing.authenticated_channel import (
    HANDSHAKE_S,
    AuthenticatedChannel,
    ChannelHello,
    KeyOf,
    accept_channel,
)
from checkpointing.errors import CheckpointError

logger = logging.getLogger("checkpointing")

MOST_GREETED = 64  # connections at a time that have not proved themselves
_PAUSE_S = 0.5  # until accepting is tried again


class ChannelListener:
    """Accepts the connections at a socket and serves each in a thread of its own, until it is
    closed. A connection has to prove itself soon, and so do `MOST_GREETED` at a time at most.
    """

    def __init__(
        self,
        sock: socket.socket,
        key_of: KeyOf,
        serve: Callable[[AuthenticatedChannel, ChannelHello], bool | None],
        *,
        name: str,
        refuse: Callable[[], None],
        patience_s: float = 0.0,
    ) -> None:
        """
        Args:
            sock: listens already; it is closed with this object.
            key_of: as of `accept_channel`.
            serve: answers the requests of a connection, until the other side is gone; or returns
                True, and whoever it has given the connection to closes it.
            name: of the threads.
            refuse: called for each connection that is refused.
            patience_s: seconds that a connection waits for one of `MOST_GREETED` others.
        """
        self._socket, self._key_of, self._serve = sock, key_of, serve
        self._name, self._refuse, self._patience_s = name, refuse, patience_s
        self._unproven = threading.Semaphore(MOST_GREETED)
        self._unproven_sockets: set[socket.socket] = set()
        self._channels: set[AuthenticatedChannel] = set()
        self._lock = threading.Lock()
        self._is_started = self._is_closed = False

    def start(self) -> None:
        """Accept connections from now on."""
        self._is_started = True
        threading.Thread(target=self._accept, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        with self._lock:
            self._is_closed = True
            channels = list(self._channels)
        _shut(self._socket)
        if not self._is_started:
            self._socket.close()
        for channel in channels:
            channel.hang_up()

    def after_fork(self) -> None:
        """Close the sockets in a forked child, which has none of the threads; the connections of
        its parent go on."""
        self._socket.close()
        for sock in self._unproven_sockets:
            sock.close()
        for channel in self._channels:
            channel.forget()
        self._unproven_sockets, self._channels = set(), set()
        self._lock = threading.Lock()

    def _accept(self) -> None:
        for number in itertools.count():
            try:
                sock, where = self._socket.accept()
            except OSError as error:
                if self._is_closed:
                    break
                logger.error("cannot accept a peer: %s", error)
                time.sleep(_PAUSE_S)
                continue
            self._unproven_sockets.add(sock)
            if not self._unproven.acquire(timeout=self._patience_s):
                logger.warning("too many open handshakes: %s is refused", where[0])
                self._refuse()
                self._drop(sock)
                continue
            name = f"{self._name}-{number}"
            try:
                threading.Thread(
                    target=self._handle, args=(sock, str(where[0])), name=name, daemon=True
                ).start()
            except RuntimeError as error:  # the limit of threads of this user or machine
                logger.error("cannot answer %s: %s", where[0], error)
                self._unproven.release()
                self._drop(sock)
                time.sleep(_PAUSE_S)
        self._socket.close()

    def _handle(self, sock: socket.socket, where: str) -> None:
        # a peer that sends a byte now and then is disconnected all the same
        late = threading.Timer(2 * HANDSHAKE_S, _shut, [sock])
        late.daemon = True
        try:
            late.start()
            channel, hello = accept_channel(sock, self._key_of)
        except (
            OSError,
            CheckpointError,
            RuntimeError,
        ) as error:  # no further thread can be started
            logger.warning("a connection from %s is refused: %s", where, error)
            self._refuse()
            self._drop(sock)
            return
        finally:
            late.cancel()
            self._unproven.release()
        with self._lock:
            self._channels.add(channel)
            is_closed = self._is_closed
        self._unproven_sockets.discard(sock)
        is_kept = False
        try:
            is_kept = not is_closed and self._serve(channel, hello) is True
        finally:
            if not is_kept:
                channel.close()
            with self._lock:
                self._channels.discard(channel)

    def _drop(self, sock: socket.socket) -> None:
        sock.close()
        self._unproven_sockets.discard(sock)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        logger.debug("the connection was over already")
