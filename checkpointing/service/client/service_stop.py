"""Tells the services of a run on this machine that the run is over."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from checkpointing.errors import ServiceError
from checkpointing.service.client.service_lookup import attach
from checkpointing.service.protocol.socket_address import all_sockets
from checkpointing.service.protocol.socket_frames import FrameSocket
from checkpointing.service.protocol.socket_lock import remove_dead

logger = logging.getLogger("checkpointing")


def end_services(url: str, run: str, within_s: float, *, lost: Collection[int] = ()) -> bool:
    """Tell the services to write what they hold and to end, within `within_s`; leftovers of
    services that were killed are removed too.

    Args:
        url, run: as given to the trainers' `Checkpointer`, a path as an absolute one.
        within_s: how long to wait for the services, in seconds; they plan by it.
        lost: ranks of the last generation that are gone with all that they had in memory: no
            service waits for a save of which a part of theirs is missing.

    Returns:
        Whether they have ended.
    """
    wires = list(_services(url, run))
    for pid, wire in wires:
        with suppress(ConnectionError):  # the service is already ending
            _ask(wire, {"kind": "grace", "seconds": within_s})
            if lost:
                _ask(wire, {"kind": "lost", "ranks": sorted(lost)})
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + within_s
    ended = [_has_ended(wire, deadline_s) for _, wire in wires]
    for (pid, wire), has_ended in zip(wires, ended, strict=True):
        wire.close()
        if not has_ended:
            logger.error("the checkpoint service of %s, process %d, is still writing", run, pid)
    remove_dead(run)
    return all(ended)


def report_lost_ranks(url: str, run: str, lost: Collection[int]) -> None:
    """Tell services that are already ending which ranks are lost, as `lost` of `end_services`,
    because it was not known when they were asked to end."""
    for _, wire in _services(url, run):
        with suppress(ConnectionError):  # the service has ended
            _ask(wire, {"kind": "lost", "ranks": sorted(lost)})
        wire.close()


def _ask(wire: FrameSocket, message: dict[str, Any]) -> None:
    """Send a message and wait until the service has handled it."""
    wire.send(message | {"number": 2})
    wire.receive()


def _services(url: str, run: str) -> Iterator[tuple[int, FrameSocket]]:
    for path in all_sockets():
        try:
            wire = attach(path)
            if wire is None:
                continue
            wire.send({"kind": "status", "number": 1})
            answer = wire.receive()
        except (OSError, ServiceError) as error:
            logger.warning("%s: %s", path, error)
            continue
        status = answer[0] if answer else {}
        if (status.get("root"), status.get("run")) == (url, run):
            yield int(status["pid"]), wire
        else:
            wire.close()


def _has_ended(wire: FrameSocket, deadline_s: float) -> bool:
    """Wait until the other side has closed the connection; return whether it has."""
    while time.monotonic() < deadline_s:
        if wire.is_over(min(0.5, max(0.0, deadline_s - time.monotonic()))):
            return True
    return False
