"""Connects to services that are running. It imports no numpy, so that a process that only asks a
service starts quickly."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from checkpointing.errors import ServiceError
from checkpointing.service.protocol.socket_address import check_peer
from checkpointing.service.protocol.socket_frames import FrameSocket

STATUS_S = 5.0  # seconds within which a service has to send its status
CONNECT_S = 5.0  # seconds within which a running service has to accept a connection


def attach(path: Path) -> FrameSocket | None:
    """Return a connection to the service that listens at `path`, or None if none does.

    Raises:
        ServiceError: it belongs to another user, or cannot be reached.
    """
    sock = open_socket(path)
    return FrameSocket(sock) if sock is not None else None


def status(path: Path) -> dict[str, Any] | None:
    """Return the status of the service that listens at `path`, or None if none does.

    Raises:
        ServiceError: it does not answer, and why.
    """
    wire = attach(path)
    if wire is None:
        return None
    try:
        wire.send({"kind": "status", "number": 1})
        if not wire.has_news(STATUS_S):
            raise ServiceError(f"the service at {path} did not answer within {STATUS_S:g} s")
        answer = wire.receive()
    except ConnectionError as error:
        raise ServiceError(f"the service at {path}: {error}") from error
    finally:
        wire.close()
    if answer is None:
        raise ServiceError(f"the service at {path} has just ended")
    return {key: value for key, value in answer[0].items() if key not in ("kind", "number")}


def open_socket(path: Path) -> socket.socket | None:
    """Return a socket that is connected to the service at `path`; as of `attach`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_S)
        sock.connect(str(path))
        check_peer(sock)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except OSError as error:
        sock.close()
        raise ServiceError(
            f"cannot connect to the checkpoint service at {path}: {error}"
        ) from error
    except ServiceError:
        sock.close()
        raise
    return sock
