"""Starts the service of a node before its first trainer joins it, while that prepares other things:
the service takes a few tenths of a second to start."""

from __future__ import annotations

import threading
from contextlib import suppress

from checkpointing.errors import ServiceError
from checkpointing.service.client.service_start import connect
from checkpointing.service.config import ServiceConfig


def start_early(config: ServiceConfig) -> threading.Thread:
    """Start this node's service in a thread, if it is not running, and return the thread.

    Who joins later waits for it, and learns why it could not start. A service that nobody joins
    ends after `checkpointing.service.service_lifetime.UNUSED_S` seconds.
    """
    thread = threading.Thread(target=_start, args=(config,), name="service start", daemon=True)
    thread.start()
    return thread


def _start(config: ServiceConfig) -> None:
    with suppress(ServiceError, OSError):  # raised where the service is joined
        connect(config).close()
