"""A process that only writes: the least that a durable save of these bytes can do beside training.

    python -m benchmarks.checkpoint.direct_writer FILE BYTES

It has BYTES of random content in memory. For every line on its standard input, it writes them to a
new FILE past the page cache, with fsync, and prints a line.
"""

from __future__ import annotations

import mmap
import os
import select
import subprocess
import sys
from pathlib import Path

import numpy as np

_BLOCK = 1 << 20  # bytes of a write, as of hpckit's service


class DirectWrite:
    """The process as an arm: it neither copies, hashes nor encodes. It has the niceness of hpckit's
    service."""

    name = "plain direct write with fsync"

    def __init__(self, folder: Path, nbytes: int, nice: int) -> None:
        words = [sys.executable, "-m", __name__, str(folder / "direct"), str(nbytes)]
        self._process = subprocess.Popen(
            ["nice", "-n", str(nice), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._is_done = True
        self._read()  # it is ready

    def save(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self._is_done = False

    def before_step(self) -> None: ...

    def is_done(self) -> bool:
        assert self._process.stdout is not None
        if not self._is_done and select.select([self._process.stdout], [], [], 0)[0]:
            self.wait()
        return self._is_done

    def wait(self) -> None:
        if not self._is_done:
            self._read()
            self._is_done = True

    def load(self) -> None:
        raise NotImplementedError("it writes random content")

    def clear(self) -> None: ...

    def close(self) -> None:
        self.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise OSError("the process that writes has ended: its output says why")


def main(path: Path, nbytes: int) -> None:
    memory = mmap.mmap(-1, nbytes // _BLOCK * _BLOCK + _BLOCK)  # whole blocks, on a page boundary
    words = np.random.default_rng(0).integers(1 << 62, size=len(memory) // 8)
    np.frombuffer(memory, np.int64)[:] = words
    del words
    print(flush=True)
    for _ in sys.stdin.buffer:
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        for start in range(0, nbytes, _BLOCK):
            os.write(fd, memoryview(memory)[start : start + _BLOCK])
        os.fsync(fd)
        os.close(fd)
        print(flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
