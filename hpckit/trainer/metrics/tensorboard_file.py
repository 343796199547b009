"""The TensorBoard file that an attempt writes to a folder."""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from io import BufferedWriter
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary

_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\.")
_VERSION = "brain.Event:2"


class TensorBoardFile:
    """A file that is created with the first record. All methods may raise OSError.

    A record is one entry of the file. torch's SummaryWriter writes an entry for each value, and its
    queue is shorter than a record, so that each record would wait for the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BufferedWriter | None = None

    def restart(self, step: int, time_s: float) -> None:
        """Mark the begin of an attempt that resumed after `step` steps, by which TensorBoard drops
        later steps of the previous attempt."""
        start = SessionLog(status=SessionLog.START)
        self._add(Event(wall_time=time_s, step=step + 1, session_log=start))

    def write(self, step: int, time_s: float, record: Mapping[str, float]) -> None:
        """Write the values of a step, with its time in seconds since the epoch."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in record.items()]
        self._add(Event(wall_time=time_s, step=step, summary=Summary(value=values)))

    def _add(self, entry: Event) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = _latest_file(self._folder, time.time()).open("xb")
            self._add(Event(wall_time=entry.wall_time, file_version=_VERSION))
        self._file.write(encode_record(entry.SerializeToString()))

    def flush(self) -> None:
        """Flush the file to disk."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        if self._file is not None:
            self._file.close()


def _latest_file(folder: Path, now_s: float) -> Path:
    """Return the path of a new file that TensorBoard reads after the present ones.

    TensorBoard sorts files by their names, which begin with a time in seconds. This time is made
    larger than all others, since two attempts may begin within a second, and clocks may differ.
    """
    seconds = [int(found[1]) for path in folder.iterdir() if (found := _NAME.match(path.name))]
    second = max(int(now_s), *(each + 1 for each in seconds), 0)
    return folder / f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}.0"


def encode_record(data: bytes) -> bytes:
    """Return a record of a TFRecord file: its length, data, and a masked CRC-32C of each.

    TensorBoard's own writer is not used, since its import takes five times the CPU time of the
    imports above, in each attempt.
    """
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    rotated = (crc >> 15) | (crc << 17)
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_table() -> Iterator[int]:
    """Yield the CRC-32C (RFC 3720, reflected) of each byte."""
    for crc in range(256):
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        yield crc


_CRC_TABLE = tuple(_crc_table())
