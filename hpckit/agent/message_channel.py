"""Messages between the supervisor and a node's agent over a pair of pipes.

srun carries the standard input and output of what it starts from node to node. So the channel needs
no port, no key and no signal, whose delivery depends on how Slurm tracks processes, and it ends
with either side. Pipes do not show that a side was cut off or frozen: each side sends a blank line
every second, and counts as lost when it does not.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from contextlib import suppress
from typing import Any

log = logging.getLogger(__name__)

BEAT_S = 1.0
SILENT_S = 5.0
"""Seconds of silence after which the other side counts as lost."""
SUSPECT_S = 2.5
"""As `SILENT_S`, if there is another sign that the other side is lost."""
QUIET_S = 1.6
"""Seconds of silence after which a heartbeat is more than half its period late: early enough to ask
others about the other side, which takes them seconds, and no reason to count it as lost."""
_MAX_UNSENT_BYTES = 1 << 20  # bytes; a message beyond this is dropped, as nobody reads
_READ_BYTES = 1 << 16

Message = dict[str, Any]


class Channel:
    """One side of a channel, which never blocks. Sending is thread-safe."""

    def __init__(self, read: int, write: int) -> None:
        """
        Args:
            read, write: descriptors, which are switched to non-blocking; the caller closes them
                after `close`.
        """
        self._read, self._write = read, write
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self._unsent, self._unread = b"", b""
        self._last_read_s, self._silence_s = time.monotonic(), 0.0
        self._is_over = False
        self.is_suspect = False
        """Whether there is another sign that the other side is lost."""
        self._lock = threading.Lock()

    @property
    def has_ended(self) -> bool:
        """Whether the other side has ended."""
        return self._is_over

    @property
    def is_over(self) -> bool:
        """Whether the other side has ended or was silent for too long while this one read. Time in
        which this side was busy, waited for a disk or was frozen does not count, as messages may
        wait in the pipe."""
        return self._is_over or self._silence_s > (SUSPECT_S if self.is_suspect else SILENT_S)

    @property
    def is_quiet(self) -> bool:
        """Whether a heartbeat of the other side is overdue, as of one that may be lost."""
        return self._silence_s > QUIET_S

    def send(self, message: Message) -> None:
        """Sends a message as plain JSON. What does not fit into the pipe goes with the next call of
        `receive`, message or heartbeat."""
        self._put(json.dumps(message).encode() + b"\n")

    def send_heartbeat(self) -> None:
        """Sends a heartbeat."""
        self._put(b"" if self._unsent else b"\n")

    def fileno(self) -> int:
        """Returns the descriptor that this side reads, for `select` and its kind."""
        return self._read

    def receive(self, *, is_readable: bool = True) -> list[Message]:
        """Returns the messages that came since the last call, in the order in which they were
        sent.

        Args:
            is_readable: False: there is nothing to read, as `select` says.
        """
        now_s = time.monotonic()
        self._silence_s += min(now_s - self._last_read_s, BEAT_S)
        self._last_read_s = now_s
        if self._unsent:
            self._put(b"")  # a long message needs the pipe many times
        if not is_readable:
            return []
        with suppress(BlockingIOError):
            while data := os.read(self._read, _READ_BYTES):
                self._silence_s = 0.0
                self._unread += data
            self._is_over = True
        *lines, self._unread = self._unread.split(b"\n")
        return [message for line in lines if line and (message := _parse(line))]

    def close(self) -> None:
        """Ends sending."""
        with self._lock:
            self._is_over = True

    def _put(self, data: bytes) -> None:
        with self._lock:
            if self._is_over or len(self._unsent) > _MAX_UNSENT_BYTES:
                return
            self._unsent += data
            try:
                self._unsent = self._unsent[os.write(self._write, self._unsent) :]
            except BlockingIOError:
                pass
            except OSError:  # nobody reads
                self._unsent = b""


class HeartbeatThread:
    """A thread that sends heartbeats on channels whatever else this process does, so that a hanging
    disk does not make the other side count it as lost."""

    def __init__(self) -> None:
        self._channels: set[Channel] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def add(self, channel: Channel) -> None:
        """Sends heartbeats on this channel, too, from now on."""
        with self._lock:
            self._channels.add(channel)

    def remove(self, channel: Channel) -> None:
        """Ends the heartbeats on this channel."""
        with self._lock:
            self._channels.discard(channel)

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S):
            with self._lock:
                channels = tuple(self._channels)
            for channel in channels:
                channel.send_heartbeat()


def _parse(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        log.warning("skipped a line that is not a message: %.80r", line)
        return None
    return message
