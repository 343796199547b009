"""Frames between two nodes, over TCP: both sides prove to each other that they know the
generation's key, and each frame carries a hash under a key of its connection. Services send
snapshots by it, and node stores shards."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import xxhash
from blake3 import blake3

from checkpointing.errors import ServiceError

PROTOCOL = 2
KEY_BYTES = 32
CHUNK = 4 << 20  # most bytes of a snapshot in one frame
MAX_MESSAGE = 256 << 20  # bytes; the layout of a million tensors' boxes takes about half of it
MAX_HELLO = 4096  # bytes of what comes before the other side has proved itself
HANDSHAKE_S = 5.0  # seconds within which the other side has to prove itself
SILENT_S = 15.0  # seconds without a byte, after which a connection counts as lost
_HEAD = struct.Struct("<BI")  # kind, length
_COUNT = struct.Struct("<Q")  # number of the frame, in its direction
_JSON, _BYTES, _CHECKED = 0, 1, 2
_MAC = 32
_JOINED = 16 << 10  # bytes up to which a frame is sent by one call


class PeerGaveUpError(ServiceError):
    """The other side cannot continue what it was sending."""


KeyOf = Callable[["ChannelHello"], bytes | None]


@dataclass(frozen=True)
class ChannelHello:
    """The first message of the side that connects."""

    generation: str  # id of the generation whose key is used
    node: int  # place of the connecting node in the ring of that generation
    to: int  # place of the node that is meant
    role: str  # "origin": sends snapshots; "pull": requests one; "shards": of a data cache
    nonce: str
    protocol: int = PROTOCOL


class AuthenticatedChannel:
    """A connection after its handshake. One thread uses it; any thread may end it."""

    def __init__(self, sock: socket.socket, sending: bytes, receiving: bytes) -> None:
        """Wrap a socket after the handshake.

        Args:
            sending, receiving: keys of this connection, one for each direction.
        """
        self._sock, self._sending, self._receiving = sock, sending, receiving
        self._sent = self._received = 0  # number of frames
        self._buffer = bytearray()
        self._closing = threading.Lock()
        self._silent_s, self._until_s = SILENT_S, float("inf")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            ConnectionError: the other side is gone, or does not read.
            ServiceError: the message is too long.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MAX_MESSAGE:
            raise ServiceError(f"a message of {len(body)} bytes to a peer is too long")
        self._send(_JSON, body)

    def send_bytes(self, data: bytes | memoryview) -> None:
        """Send at most `CHUNK` bytes. Raises as `send`."""
        self._send(_BYTES, data)

    def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            ConnectionError: the other side is gone, or silent for too long.
            ServiceError: the received data is not a message, or was changed on its way.
        """
        kind, body = self._receive()
        if kind != _JSON:
            raise ServiceError("a peer sent bytes instead of a message")
        return _message(bytes(body))

    def fileno(self) -> int:
        """Return the descriptor of the socket, to wait until there is something to receive."""
        return self._sock.fileno()

    def send_checked(self, data: memoryview) -> None:
        """Send at most `CHUNK` bytes with a checksum (XXH3) in place of the hash under the key, for
        `receive_checked`. Damage is detected, and a change on purpose is not; it takes a tenth of
        the time. Raises as `send`."""
        self._send(_CHECKED, data)

    def receive_checked(self, into: memoryview) -> int:
        """Fill the beginning of `into` with the next bytes that were sent by `send_checked`, and
        return their number. `into` has been written to even if this raises.

        Raises:
            ConnectionError, ServiceError: as `receive`.
            ServiceError: more bytes came than there is room for.
        """
        _, body = self._receive(into)
        return len(body)

    def receive_bytes(self) -> memoryview:
        """Return the next bytes of a snapshot, at least one; they are valid until the next call.

        Raises:
            ConnectionError, ServiceError: as `receive`.
            PeerGaveUpError: the other side cannot continue, and why.
        """
        kind, body = self._receive()
        if kind == _JSON:
            raise PeerGaveUpError(
                str(_message(bytes(body)).get("refused", "it sent a message instead of bytes"))
            )
        if not body:
            raise ServiceError("a peer sent a frame without bytes")
        return body

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer.

        Raises:
            ConnectionError, ServiceError: as `send` and `receive`.
            ServiceError: the other side refuses, and why.
        """
        self.send(message)
        answer = self.receive()
        if "refused" in answer:
            raise ServiceError(f"the peer refuses: {answer['refused']}")
        return answer

    def set_timeout(self, seconds: float, until_s: float = float("inf")) -> None:
        """Set how long to wait for the other side from now on.

        Args:
            seconds: for each byte, of both directions.
            until_s: the monotonic time until which all that is received has to be there.
        """
        self._silent_s, self._until_s = seconds, until_s
        self._sock.settimeout(seconds)

    def keep_alive(self, options: Mapping[str, int]) -> None:
        """Have the system ask now and then whether the other machine is still there.

        Args:
            options: names and values of socket options of TCP.
        """
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            self._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send_long(self, body: bytes) -> None:
        """Send bytes of any number, which the other side knows. Raises as `send`."""
        for at in range(0, len(body), CHUNK):
            self.send_bytes(memoryview(body)[at : at + CHUNK])

    def receive_long(self, size: int) -> bytes:
        """Return the next `size` bytes that were sent by `send_long`. Raises as `receive`."""
        body = bytearray()
        while len(body) < size:
            body += self.receive_bytes()
        return bytes(body)

    def peek(self) -> int | None:
        """Return the first byte of the next bytes that were sent, not checked yet, without waiting
        and without receiving them; None: they have not arrived, or the connection has ended."""
        with contextlib.suppress(OSError):
            frame = self._sock.recv(_HEAD.size + 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            return frame[_HEAD.size] if len(frame) > _HEAD.size else None
        return None

    def end_sending(self) -> None:
        """Tell the other side that nothing follows what was sent."""
        with contextlib.suppress(OSError):  # it has closed the connection
            self._sock.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """End the connection, from any thread; wakes up a call under way."""
        with self._closing, contextlib.suppress(OSError):  # already closed by the other side
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket when no call is under way; a second call does nothing."""
        self.hang_up()
        with self._closing:
            self._sock.close()

    def forget(self) -> None:
        """Release this process's descriptor of the socket, and leave the connection to the process
        that this one was forked from."""
        self._closing = threading.Lock()  # a thread of that process may have held it
        self._sock.close()

    def _send(self, kind: int, body: bytes | memoryview) -> None:
        head = _HEAD.pack(kind, len(body))
        mac = self._tag(kind, self._sending, self._sent, head, body)
        self._sent += 1
        try:
            if len(body) <= _JOINED:
                self._sock.sendall(b"".join((head, body, mac)))
                return
            self._sock.sendall(head)
            self._sock.sendall(body)
            self._sock.sendall(mac)
        except OSError as error:
            raise ConnectionError(f"the peer has closed the connection: {error}") from error

    def _receive(self, into: memoryview | None = None) -> tuple[int, memoryview]:
        head = bytes(self._read(_HEAD.size))
        kind, length = _HEAD.unpack(head)
        is_wanted = kind == _CHECKED if into is not None else kind in (_JSON, _BYTES)
        if not is_wanted or length > (MAX_MESSAGE if kind == _JSON else CHUNK):
            raise ServiceError(f"a peer sent a frame of kind {kind} and {length} bytes")
        if into is not None and length > len(into):
            raise ServiceError(f"a peer sent {length} bytes, and {len(into)} were expected")
        tag: bytes | bytearray | memoryview
        if into is not None:
            body = into[:length]
            self._read_into(body)
            tag = self._read(_MAC)
        elif kind == _BYTES:
            whole = self._room(length + _MAC)
            self._read_into(whole)
            body, tag = whole[:length], whole[length:]
        else:
            body = memoryview(self._read(length))
            tag = self._read(_MAC)
        expected = self._tag(kind, self._receiving, self._received, head, body)
        if not hmac.compare_digest(tag, expected):
            raise ServiceError(
                "a frame from a peer was changed in transit, or its sender does not know the key"
            )
        self._received += 1
        return kind, body

    def _tag(
        self, kind: int, key: bytes, count: int, head: bytes, body: bytes | memoryview
    ) -> bytes:
        """Returns what follows a frame: 32 bytes."""
        if kind != _CHECKED:
            return _mac(key, count, head, body)
        # the hash of the checksum ties it to its place in this connection
        return _mac(key, count, head, xxhash.xxh3_128_digest(body))

    def _room(self, length: int) -> memoryview:
        if length > len(self._buffer):
            self._buffer = bytearray(length)
        return memoryview(self._buffer)[:length]

    def _read(self, length: int) -> bytearray:
        return _read(self._sock, length, self._silent_s, self._until_s)

    def _read_into(self, into: memoryview) -> None:
        _read_into(self._sock, into, self._silent_s, self._until_s)


def connect_channel(
    address: str, port: int, key: bytes, hello: ChannelHello, within_s: float | None = None
) -> AuthenticatedChannel:
    """Return a connection to the service that listens at `address` and `port`.

    Args:
        within_s: seconds that the handshake may take; None: `HANDSHAKE_S` for each byte of it.

    Raises:
        ConnectionError: nobody listens there, or the other side disconnects, as it does if this
            side does not know the key.
        ServiceError: the other side does not know the key.
    """
    silent_s = HANDSHAKE_S if within_s is None else within_s
    until_s = float("inf") if within_s is None else time.monotonic() + within_s
    try:
        sock = socket.create_connection((address, port), timeout=silent_s)
    except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
        raise ConnectionError(
            f"cannot connect to a peer at {address} port {port}: {error}"
        ) from error
    try:
        hello_bytes = _dump(asdict(hello))
        _send_plain(sock, hello_bytes)
        answer = _message(_receive_plain(sock, silent_s, until_s))
        proofs = _Secrets(key, hello_bytes, str(answer.get("nonce")))
        if not _is_proof(answer.get("proof"), proofs.of("listener")):
            raise ServiceError(
                f"the process that listens at {address} port {port} does not know the key"
            )
        _send_plain(sock, _dump({"proof": proofs.of("dialler").hex()}))
        return AuthenticatedChannel(_ready(sock), proofs.of("to listener"), proofs.of("to dialler"))
    except BaseException:
        sock.close()
        raise


def accept_channel(sock: socket.socket, key_of: KeyOf) -> tuple[AuthenticatedChannel, ChannelHello]:
    """Return the connection of a node that has proved itself, and its hello. The caller closes
    `sock` if this raises.

    Args:
        key_of: returns the key that the other side has to know; None: the sender of such a hello is
            unknown.

    Raises:
        ConnectionError: the other side disconnects, or sends nothing.
        ServiceError: it does not know the key, or sends something that is not a hello.
    """
    sock.settimeout(HANDSHAKE_S)
    hello_bytes = _receive_plain(sock)
    hello = _hello(hello_bytes)
    key = key_of(hello)
    if key is None:
        raise ServiceError(f"generation {hello.generation!r}, node {hello.node}: unknown here")
    nonce = secrets.token_hex(KEY_BYTES)
    proofs = _Secrets(key, hello_bytes, nonce)
    _send_plain(sock, _dump({"nonce": nonce, "proof": proofs.of("listener").hex()}))
    if not _is_proof(_message(_receive_plain(sock)).get("proof"), proofs.of("dialler")):
        raise ServiceError("the connecting process does not know the key")
    return AuthenticatedChannel(
        _ready(sock), proofs.of("to dialler"), proofs.of("to listener")
    ), hello


def new_hello(generation: str, node: int, to: int, role: str) -> ChannelHello:
    return ChannelHello(generation, node, to, role, secrets.token_hex(KEY_BYTES))


class _Secrets:
    """What only a side that knows the key can compute, for one handshake."""

    def __init__(self, key: bytes, hello_bytes: bytes, nonce: str) -> None:
        self._key = key
        self._transcript = hello_bytes + b"\0" + nonce.encode(errors="surrogatepass")

    def of(self, what: str) -> bytes:
        return blake3(what.encode() + b"\0" + self._transcript, key=self._key).digest()


def _is_proof(received: object, expected: bytes) -> bool:
    return isinstance(received, str) and hmac.compare_digest(
        received.encode(errors="surrogatepass"), expected.hex().encode()
    )


def _mac(key: bytes, count: int, head: bytes, body: bytes | memoryview) -> bytes:
    hasher = blake3(_COUNT.pack(count) + head, key=key)
    hasher.update(body)
    return hasher.digest(_MAC)


def _hello(hello_bytes: bytes) -> ChannelHello:
    try:
        hello = ChannelHello(**_message(hello_bytes))
    except TypeError as error:
        raise ServiceError("the received message is not the hello of a service") from error
    numbers = (hello.node, hello.to, hello.protocol)
    words = (hello.generation, hello.role, hello.nonce)
    if not all(type(n) is int for n in numbers) or not all(isinstance(w, str) for w in words):
        raise ServiceError("the received message is not the hello of a service")
    if hello.protocol != PROTOCOL:
        raise ServiceError(
            f"a peer speaks protocol {hello.protocol}, this service {PROTOCOL}: use one version of "
            "hpckit on all nodes"
        )
    return hello


def _ready(sock: socket.socket) -> socket.socket:
    sock.settimeout(SILENT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _dump(plain: Mapping[str, Any]) -> bytes:
    return json.dumps(plain, separators=(",", ":")).encode()


def _message(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ServiceError("a peer sent something that is not a message") from error
    if not isinstance(message, dict):
        raise ServiceError("a peer sent something that is not a message: no object")
    return message


def _send_plain(sock: socket.socket, body: bytes) -> None:
    try:
        sock.sendall(_HEAD.pack(_JSON, len(body)) + body)
    except OSError as error:
        raise ConnectionError(f"the peer has closed the connection: {error}") from error


def _receive_plain(
    sock: socket.socket, silent_s: float = HANDSHAKE_S, until_s: float = float("inf")
) -> bytes:
    kind, length = _HEAD.unpack(_read(sock, _HEAD.size, silent_s, until_s))
    if kind != _JSON or length > MAX_HELLO:
        raise ServiceError("the received message is not the hello of a service")
    return bytes(_read(sock, length, silent_s, until_s))


def _read(sock: socket.socket, length: int, silent_s: float, until_s: float) -> bytearray:
    """Read `length` bytes; memory is allocated as bytes arrive, and not because they are
    announced."""
    found = bytearray()
    while len(found) < length:
        part = bytearray(min(length - len(found), 1 << 20))
        _read_into(sock, memoryview(part), silent_s, until_s)
        found += part
    return found


def _read_into(sock: socket.socket, into: memoryview, silent_s: float, until_s: float) -> None:
    done, is_bounded = 0, until_s != float("inf")
    while done < len(into):
        try:
            if is_bounded:  # a side that sends a byte now and then is disconnected all the same
                sock.settimeout(min(silent_s, max(1e-3, until_s - time.monotonic())))
            count = sock.recv_into(into[done:])
        except OSError as error:
            raise ConnectionError(f"the peer has closed the connection: {error}") from error
        if not count:
            raise ConnectionError("the peer has closed the connection")
        done += count
