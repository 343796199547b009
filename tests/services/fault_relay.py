"""How one request goes through a proxy, and what becomes of it under each fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.services.faults import (
    Answer,
    Fault,
    FlipByte,
    LoseReply,
    ResetDownload,
    ResetUpload,
    Stall,
    Throttle,
    Together,
    Truncate,
)
from tests.services.http_stream import (
    LINE_LIMIT,
    Head,
    once,
    read_chunks,
    read_head,
    read_pieces,
    reset,
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]  # one connection


@asynccontextmanager
async def connection(host: str, port: int) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(host, port, limit=LINE_LIMIT)
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer_with(client: Streams, head: Head, fault: Answer) -> None:
    reader, writer = client
    if head.chunked:  # who is still writing hears no answer
        await read_chunks(reader)
    elif head.get("expect") != "100-continue":
        async for _ in read_pieces(reader, head.length):
            pass
    body = f"<Error><Code>{fault.code}</Code><Message>injected</Message></Error>".encode()
    lines = [
        f"HTTP/1.1 {fault.status} Injected",
        "Content-Type: application/xml",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if fault.retry_after_s is not None:
        lines.append(f"Retry-After: {fault.retry_after_s}")
    if head.line[0] == "HEAD":
        body = b""
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()


async def pass_on(client: Streams, server: Streams, head: Head, fault: Fault | None) -> bool:
    refusal = await _upload(client, server, head, fault)
    if isinstance(fault, ResetUpload):
        reset(server[1])
        reset(client[1])
        return False
    answer = refusal or await _final_head(client, server)
    if isinstance(fault, LoseReply):
        reset(client[1])
        return False
    whole = await _download(client, server, head.line[0], answer, fault)
    return whole and refusal is None and not head.closes and not answer.closes


async def _upload(client: Streams, server: Streams, head: Head, fault: Fault | None) -> Head | None:
    """Send the request; the answer's head if the server did not want all of the body."""
    if head.chunked:
        body = await read_chunks(client[0])
        head, pieces = head.with_length(len(body)), once(body)
    else:
        pieces = read_pieces(client[0], head.length)
    server[1].write(head.raw)
    if head.get("expect") == "100-continue":
        early = await _answer_head(server)
        if early.line[1] != "100":
            return early
        client[1].write(early.raw)
    left = _bytes_to_send(fault, head)
    async for piece in pieces:
        server[1].write(piece[:left])
        left = max(0, left - len(piece))
        try:
            await server[1].drain()
        except ConnectionError:  # it may have answered before it closed
            return await _final_head(client, server)
        if left == 0:
            break
    return None


def _bytes_to_send(fault: Fault | None, head: Head) -> int:
    if not isinstance(fault, ResetUpload):
        return head.length
    if fault.after > head.length:
        raise ValueError(f"{fault} is beyond the request's body of {head.length} bytes")
    return fault.after


async def _answer_head(server: Streams) -> Head:
    try:
        return await read_head(server[0])
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the server closed the connection without an answer") from error


async def _final_head(client: Streams, server: Streams) -> Head:
    while (head := await _answer_head(server)).line[1] == "100":
        client[1].write(head.raw)
    return head


async def _download(
    client: Streams, server: Streams, method: str, head: Head, fault: Fault | None
) -> bool:
    """Send the answer; whether it is whole."""
    writer = client[1]
    if method == "HEAD" or head.line[1] in ("204", "304"):
        length, pieces = 0, once(b"")
    elif head.chunked:
        body = await read_chunks(server[0])
        length, pieces = len(body), once(body)
        head = head.with_length(length)
    else:
        length, pieces = head.length, read_pieces(server[0], head.length)
    _check_reach(fault, length)
    writer.write(head.raw)
    if isinstance(fault, Together):
        await fault.barrier.wait()
    sent = 0
    async for piece in pieces:
        if not await _send_piece(writer, piece, sent, fault):
            return False
        sent += len(piece)
    await writer.drain()
    return True


def _check_reach(fault: Fault | None, length: int) -> None:
    match fault:
        case FlipByte(at) | Truncate(at) | ResetDownload(at) | Stall(at, _) if at >= length:
            raise ValueError(f"{fault} is beyond the answer's body of {length} bytes")


async def _send_piece(
    writer: asyncio.StreamWriter, piece: bytes, start: int, fault: Fault | None
) -> bool:
    """Send a piece that begins at byte `start` of the body; whether the body goes on."""
    match fault:
        case FlipByte(at) if 0 <= at - start < len(piece):
            changed = bytearray(piece)
            changed[at - start] ^= 0xFF
            piece = bytes(changed)
        case Truncate(after) | ResetDownload(after) if after - start < len(piece):
            writer.write(piece[: after - start])
            await writer.drain()
            if isinstance(fault, ResetDownload):
                await asyncio.sleep(0.05)  # a reset overtakes what was not yet sent
                reset(writer)
            return False
        case Stall(after, seconds) if 0 <= after - start < len(piece):
            writer.write(piece[: after - start])
            await asyncio.sleep(seconds)
            piece = piece[after - start :]
        case Throttle(bytes_per_s):
            await asyncio.sleep(len(piece) / bytes_per_s)
    writer.write(piece)
    await writer.drain()
    return True
