"""How much host memory a save takes at its peak, in addition to the state, by staging mode.

    python -m benchmarks.checkpoint.staging_memory [--mib 1024] [--saves 3] [--folder DIR]

For each way a trainer and its service, both new, save a training state that changes a little from
save to save. What counts is sampled every few milliseconds from /proc: the shared memory of the
snapshots or buckets, once; what the service has of its own (RssAnon), its program included; and by
how much that of the trainer grows. The page cache is the kernel's to give back, and is left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import get_args

import torch

from benchmarks.common.number_arguments import positive_int
from benchmarks.common.training_state import TrainingState
from checkpointing import Checkpointer
from checkpointing.save.save_options import Staging

_SAMPLE_S = 0.005
TARGETS = {"slots": 2.1, "buckets": 0.3}  # peak / state


@dataclass
class Peak:
    """The bytes of one staging mode, each at the moment when their sum was largest."""

    state: int
    shared: int
    service: int
    trainer: int
    save_s: list[float]

    @property
    def share(self) -> float:
        return (self.shared + self.service + self.trainer) / self.state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=positive_int, default=1024)
    parser.add_argument("--saves", type=positive_int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk to save to; None: a temporary one")
    settings = parser.parse_args()
    print(
        f"{'staging':8} {'shared':>8} {'service':>8} {'trainer':>8} {'/ state':>8} {'at most':>8}"
    )
    for staging in get_args(Staging):
        with tempfile.TemporaryDirectory(dir=settings.folder) as folder:
            peak = measure(staging, Path(folder), settings.mib << 20, settings.saves)
        sizes = (peak.shared, peak.service, peak.trainer)
        cells = " ".join(f"{size / (1 << 20):8.0f}" for size in sizes)
        print(f"{staging:8} {cells} {peak.share:8.3f} {TARGETS[staging]:8.1f}")
        print(f"{'':8} save() took {', '.join(f'{s:.1f}' for s in peak.save_s)} s", flush=True)


def measure(staging: Staging, folder: Path, size: int, saves: int) -> Peak:
    """Measures in a new process, because memory that was taken is not returned."""
    here, there = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_save, args=(staging, folder, size, saves, there))
    process.start()
    there.close()
    try:
        plain = here.recv()
    finally:
        process.join()
    return Peak(**plain)


def _save(staging: Staging, folder: Path, size: int, saves: int, answer: Connection) -> None:
    os.environ["HPCKIT_RUNTIME_DIR"] = str(folder / "runtime")
    arrays = TrainingState(size, 1024).arrays
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    ckpt = Checkpointer(folder / "store", run="r", staging=staging)
    peak = Peak(sum(tensor.nbytes for tensor in state.values()), 0, 0, 0, [])
    with _sampled(ckpt, peak):
        for step in range(saves):
            begun_s = time.perf_counter()
            ckpt.save(step, state)
            peak.save_s.append(time.perf_counter() - begun_s)
            ckpt.wait()
            for tensor in state.values():
                if tensor.is_floating_point():
                    tensor.mul_(1.0001)
    ckpt.close()
    answer.send(asdict(peak))


@contextmanager
def _sampled(ckpt: Checkpointer, peak: Peak) -> Iterator[None]:
    """Keeps the largest sum of a sample in `peak` while the block runs."""
    service, before = int(ckpt._client.status()["pid"]), _anonymous(os.getpid())
    is_over = threading.Event()

    def sample() -> None:
        most = 0
        while not is_over.wait(_SAMPLE_S):
            shared = _shared(service)
            mine, its = max(0, _anonymous(os.getpid()) - before), _anonymous(service)
            if shared + mine + its > most:
                most = shared + mine + its
                peak.shared, peak.trainer, peak.service = shared, mine, its

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _anonymous(pid: int) -> int:
    """Returns the bytes of a process's own memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith("RssAnon:")]
    return int(found.split()[1]) << 10


def _shared(service: int) -> int:
    """Bytes of the memory that the service was sent, which the trainer took whole; each once."""
    found = {}
    for fd in Path(f"/proc/{service}/fd").iterdir():
        try:
            if "memfd:hpckit" in str(fd.readlink()):
                stat = fd.stat()
                found[stat.st_ino] = stat.st_size
        except FileNotFoundError:
            continue
    return sum(found.values())


if __name__ == "__main__":
    main()
