"""Messages between the supervisor and a node's agent, over a pair of pipes.

srun carries the standard input and output of what it starts from node to node. So this needs no
port, no key and no signal, whose way depends on how Slurm tracks processes; and it ends with
either side. What it cannot tell is a side that was cut off or frozen: each says so much as a blank
line every second, and is held for lost when it does not.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

log = logging.getLogger(__name__)

BEAT_S = 1.0
SILENT_S = 5.0
"""Seconds without a word after which the other side is held for lost."""
SUSPECT_S = 2.5
"""The same where something else speaks for that already."""
_MOST_UNSENT = 1 << 20  # bytes: what nobody reads any more is not kept
_READ = 1 << 16

Message = dict[str, Any]


class Channel:
    """One side. Never blocks. Sending is thread-safe."""

    def __init__(self, read: int, write: int) -> None:
        """
        Args:
            read, write: descriptors, which are switched to non-blocking; the caller closes them,
                after `close`.
        """
        self._read, self._write = read, write
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self._unsent, self._unread = b"", b""
        self._listened_s, self._silence_s = time.monotonic(), 0.0
        self._is_over = False
        self.is_suspect = False
        """Whether something speaks for the other side's being lost."""
        self._lock = threading.Lock()

    @property
    def has_ended(self) -> bool:
        """The other side has."""
        return self._is_over

    @property
    def is_over(self) -> bool:
        """The other side has ended, or was silent for too long while this one listened: a side that
        was busy, waited for a disk or was frozen itself has not heard what waits in the pipe."""
        return self._is_over or self._silence_s > (SUSPECT_S if self.is_suspect else SILENT_S)

    def send(self, message: Message) -> None:
        """Plain JSON. What the pipe has no room for goes with the next message or beat."""
        self._put(json.dumps(message).encode() + b"\n")

    def beat(self) -> None:
        """Say that this side is alive."""
        self._put(b"" if self._unsent else b"\n")

    def receive(self) -> list[Message]:
        """What has come since the last call, in the order in which it was sent."""
        now_s = time.monotonic()
        self._silence_s += min(now_s - self._listened_s, BEAT_S)
        self._listened_s = now_s
        with suppress(BlockingIOError):
            while data := os.read(self._read, _READ):
                self._silence_s = 0.0
                self._unread += data
            self._is_over = True
        *lines, self._unread = self._unread.split(b"\n")
        return [message for line in lines if line and (message := _parse(line))]

    def close(self) -> None:
        """Nothing is sent any more."""
        with self._lock:
            self._is_over = True

    def _put(self, data: bytes) -> None:
        with self._lock:
            if self._is_over or len(self._unsent) > _MOST_UNSENT:
                return
            self._unsent += data
            try:
                self._unsent = self._unsent[os.write(self._write, self._unsent) :]
            except BlockingIOError:
                pass
            except OSError:  # nobody is there to read it
                self._unsent = b""


class HeartbeatThread:
    """A thread that lets channels beat, whatever else keeps this process busy: a hanging disk is
    no reason for the other side to give it up."""

    def __init__(self) -> None:
        self._channels: Collection[Channel] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def of(self, channels: Collection[Channel]) -> None:
        """These, from now on."""
        self._channels = tuple(channels)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S):
            for channel in self._channels:
                channel.beat()


def _parse(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        log.warning("passed over what is no message: %.80r", line)
        return None
    return message
