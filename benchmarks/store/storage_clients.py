"""What the default S3 client saves: processor and time per MiB of obstore, against s3fs.

    python -m benchmarks.store.storage_clients [--server ceph|ministack] [--rounds 6]

Both clients through the same `Storage`, as the store uses it: objects of 16 MiB put and read by 8
threads, and ranges of 64 KiB out of them. The server runs on the same machine, in other processes,
whose time is not counted; so the processor time of the client is what carries over to other
machines, and elapsed time hardly.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.number_arguments import positive_int
from checkpointing.storage import Storage, open_storage
from tests.services.ceph import ceph
from tests.services.ministack import ministack
from tests.services.s3 import S3Server

MIB = 1 << 20
OBJECTS, OBJECT_MIB = 16, 16
RANGES, RANGE_BYTES = 640, 64 << 10
THREADS = 8
CLIENTS = ("obstore", "s3fs")
SERVERS: dict[str, Callable[[Path], AbstractContextManager[S3Server]]] = {
    "ceph": ceph,
    "ministack": ministack,
}

Work = Callable[[Storage], float]  # MiB moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--server", choices=sorted(SERVERS), default="ceph")
    parser.add_argument("--rounds", type=positive_int, default=6)
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, SERVERS[settings.server](Path(folder)) as server:
        storages = {client: _storage(server, client) for client in CLIENTS}
        for name, work in (("put", put), ("read", read), ("ranges", ranges)):
            _compare(name, work, storages, settings)


def put(storage: Storage) -> float:
    parts = [memoryview(os.urandom(MIB))] * OBJECT_MIB
    _in_threads(lambda n: storage.put(f"objects/{n}", parts), range(OBJECTS))
    return OBJECTS * OBJECT_MIB


def read(storage: Storage) -> float:
    size = OBJECT_MIB * MIB
    _in_threads(lambda n: storage.get_range(f"objects/{n}", 0, size), range(OBJECTS))
    return OBJECTS * OBJECT_MIB


def ranges(storage: Storage) -> float:
    def read_one(n: int) -> None:
        start = n * 37 % (OBJECT_MIB * MIB // RANGE_BYTES) * RANGE_BYTES
        storage.get_range(f"objects/{n % OBJECTS}", start, RANGE_BYTES)

    _in_threads(read_one, range(RANGES))
    return RANGES * RANGE_BYTES / MIB


def _compare(
    name: str, work: Work, storages: dict[str, Storage], settings: argparse.Namespace
) -> None:
    """Prints two tables from the same rounds: processor time and elapsed time."""
    elapsed: dict[str, list[float]] = {client: [] for client in storages}

    def measure(client: str) -> float:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        mib = work(storages[client])
        elapsed[client].append(1000 * (time.perf_counter() - wall_s) / mib)
        return 1000 * (time.process_time() - cpu_s) / mib

    for storage in storages.values():
        work(storage)  # connections, and for "put" the objects that the others read
    cpu = interleave({client: partial(measure, client) for client in storages}, settings.rounds)
    base, title = CLIENTS[1], f"storage-{name}-{settings.server}"
    about = {**vars(settings), "threads": THREADS}
    report(ArmComparison(f"{title}-cpu", base, "client CPU ms per MiB", cpu), about)
    report(ArmComparison(f"{title}-wall", base, "elapsed ms per MiB", elapsed), about)


def _storage(server: S3Server, client: str) -> Storage:
    place = server.new_place()
    return open_storage(place.url, options={**place.options, "client": client})


def _in_threads(call: Callable[[int], object], numbers: Iterable[int]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(call, numbers))


if __name__ == "__main__":
    main()
