"""Queues messages to one trainer, so that a trainer that does not read blocks no other."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Mapping
from typing import Any

from checkpointing.errors import ServiceError
from checkpointing.service.protocol.socket_frames import FrameSocket

logger = logging.getLogger("checkpointing")

MOST = 10_000  # most messages that may wait; a trainer that reads none of so many is disconnected


class SendQueue:
    """Sends messages in order from a thread of its own. Thread-safe."""

    def __init__(self, wire: FrameSocket) -> None:
        self._wire = wire
        self._waiting: queue.SimpleQueue[tuple[Mapping[str, Any], int | None] | None]
        self._waiting = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send, name="outbox", daemon=True)
        self._thread.start()

    def put(self, message: Mapping[str, Any], fd: int | None = None) -> None:
        """Queue a message; never blocks. A message that cannot be sent any more is dropped.

        Args:
            fd: is sent along, and closed here afterwards.
        """
        if self._waiting.qsize() > MOST:
            self._wire.close()
        self._waiting.put((message, fd))

    def close(self) -> None:
        """Stop once what is queued has been sent."""
        self._waiting.put(None)

    def _send(self) -> None:
        is_open = True
        while (item := self._waiting.get()) is not None:
            message, fd = item
            try:
                if is_open:
                    self._wire.send(message, [] if fd is None else [fd])
            except (ConnectionError, ServiceError) as error:
                logger.warning("a trainer no longer receives messages: %s", error)
                is_open = False
                self._wire.close()
            finally:
                if fd is not None:
                    os.close(fd)
