"""Bandwidths of one node or rank: memory, copies between host and GPU, disk, checkpoint store."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import torch

from checkpointing.storage import open_storage
from hpckit.system.store_timeouts import interactive_store_options
from hpckit.trainer.device.device_queue import synchronize

MIB = 1 << 20
MEMORY_BYTES = {"cpu": 32 * MIB, "cuda": 1024 * MIB}
TRANSFER_BYTES = 256 * MIB
FILE_BYTES = 64 * MIB
OBJECT_BYTES = 16 * MIB


class CorruptDataError(Exception):
    """Raised if what was read is not what was written."""


def memory_bandwidth(device: torch.device, seconds: float) -> float:
    """Returns the bytes per second that a copy within the memory of the device reads and writes."""
    source = torch.ones(MEMORY_BYTES[device.type] // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    return _rate(lambda: target.copy_(source), 2 * source.nbytes, device, seconds)


def transfer_bandwidths(device: torch.device, seconds: float) -> tuple[float, float]:
    """Returns the bytes per second of copies from pinned memory of the host to the GPU, and
    back."""
    host = torch.ones(TRANSFER_BYTES // 4, dtype=torch.int32, pin_memory=True)
    there = torch.empty_like(host, device=device)
    to_device = _rate(lambda: there.copy_(host, non_blocking=True), host.nbytes, device, seconds)
    to_host = _rate(lambda: host.copy_(there, non_blocking=True), host.nbytes, device, seconds)
    return to_device, to_host


def disk_bandwidths(folder: Path) -> tuple[float, float]:
    """Returns the bytes per second of a durable write of a file, and of reading it from the disk,
    as far as the kernel drops it from memory.

    Raises:
        OSError: the disk cannot be used.
        CorruptDataError: the file has other bytes than were written.
    """
    content = secrets.token_bytes(FILE_BYTES)
    with tempfile.TemporaryFile(prefix=".hpckit-", dir=folder, buffering=0) as file:
        begun_s = time.perf_counter()
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())
        write_s = time.perf_counter() - begun_s
        with suppress(OSError):  # a file system without a cache of pages
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        begun_s = time.perf_counter()
        found = bytearray()
        while block := file.read(8 * MIB):
            found += block
        read_s = time.perf_counter() - begun_s
    if found != content:
        raise CorruptDataError(f"a file in {folder} had other bytes than were written")
    return FILE_BYTES / write_s, FILE_BYTES / read_s


def store_bandwidths(url: str) -> tuple[float, float]:
    """Returns the bytes per second of writing an object to the checkpoint store, and of reading it.
    The object is removed.

    Raises:
        CheckpointError, OSError: the store cannot be used.
        CorruptDataError: the object has other bytes than were written.
    """
    content, name = secrets.token_bytes(OBJECT_BYTES), f"health~{secrets.token_hex(8)}"
    key = f"{name}/data"
    with closing(open_storage(url, options=interactive_store_options())) as storage:
        try:
            write_s = _timed(lambda: storage.put(key, [content]))
            begun_s = time.perf_counter()
            found = storage.get(key)
            read_s = time.perf_counter() - begun_s
        finally:
            storage.delete([key])
            if "://" not in url:
                with suppress(OSError):
                    (Path(url) / name).rmdir()
    if bytes(found) != content:
        raise CorruptDataError("an object of the store had other bytes than were written")
    return OBJECT_BYTES / write_s, OBJECT_BYTES / read_s


def _rate(call: Callable[[], object], size: int, device: torch.device, seconds: float) -> float:
    """Returns the bytes per second of calls that move `size` bytes each."""
    call()  # pages are mapped, and a GPU is woken
    synchronize(device)
    count, begun_s = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - begun_s < seconds:
        call()
        synchronize(device)
        count += 1
    return count * size / (time.perf_counter() - begun_s)


def _timed(do: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    do()
    return max(1e-9, time.perf_counter() - begun_s)
