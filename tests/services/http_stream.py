"""HTTP/1.1 messages on asyncio streams: just what a proxy has to know of them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass

_PIECE = 1 << 16  # bytes
LINE_LIMIT = 1 << 20  # bytes of a head


@dataclass(frozen=True)
class Head:
    """The first line and the headers of a message, as they came."""

    raw: bytes

    @property
    def line(self) -> list[str]:
        return self.raw.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)

    def get(self, name: str) -> str:
        """The value of header `name` in lower case, "" if there is none."""
        for line in self.raw.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.strip().lower() == name:
                return value.strip().lower()
        return ""

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return int(self.get("content-length") or 0)

    @property
    def chunked(self) -> bool:
        return self.get("transfer-encoding") == "chunked"

    @property
    def closes(self) -> bool:
        return self.get("connection") == "close"

    def with_length(self, length: int) -> Head:
        """The same head of a body that is no longer chunked."""
        lines = [
            line
            for line in self.raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
            if not line.lower().startswith(b"transfer-encoding:")
        ]
        return Head(b"\r\n".join([*lines, b"Content-Length: %d" % length, b"", b""]))


async def read_head(reader: asyncio.StreamReader) -> Head:
    """The next message's head.

    Raises:
        asyncio.IncompleteReadError: the stream ended.
    """
    return Head(await reader.readuntil(b"\r\n\r\n"))


async def read_pieces(reader: asyncio.StreamReader, length: int) -> AsyncIterator[bytes]:
    """A body of `length` bytes, piece by piece.

    Raises:
        ConnectionError: the stream ended before that.
    """
    while length:
        piece = await reader.read(min(length, _PIECE))
        if not piece:
            raise ConnectionError(f"a body ended {length} bytes early")
        length -= len(piece)
        yield piece


async def once(body: bytes) -> AsyncIterator[bytes]:
    """`body` in one piece."""
    yield body


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A whole chunked body; trailers are refused, since they would be lost.

    Raises:
        ValueError: there are trailers.
    """
    parts = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    if (await reader.readline()).strip():
        raise ValueError("the fault proxy passes on no trailers of chunked bodies")
    return b"".join(parts)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close at once, with RST and not FIN."""
    connection = writer.get_extra_info("socket")
    if not writer.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
