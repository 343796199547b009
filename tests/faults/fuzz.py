"""`python -m tests.faults.fuzz`: as many inputs as one has time for, on each reader in turn."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import mmap
import tempfile
import time
from pathlib import Path

from tests.faults.fuzzing import Failure, Reader, bounded, failure_of, make_input, minimised
from tests.faults.readers import readers

_ROUND = 1000  # inputs of a reader before the next one's turn


class Last:
    """The input at hand in a file, for one that ends this process."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "last"
        self._path.write_bytes(bytes(1 << 16))
        with self._path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 1 << 16)

    def put(self, reader: Reader, number: int, data: bytes) -> None:
        said = f"{reader.name} {number} {len(data)}\n".encode() + data
        self._memory[: len(said)] = said

    def close(self) -> None:
        self._memory.close()
        self._path.unlink()


def run_round(reader: Reader, seed: int, first: int, count: int, last: Last) -> list[Failure]:
    """Inputs `first` to `first + count - 1`; one failure of each kind, minimised."""
    found: dict[str, Failure] = {}
    for number in range(first, first + count):
        data = make_input(reader, seed, number)
        last.put(reader, number, data)
        failure = failure_of(reader, data)
        if failure is not None and (kind := f"{failure.error!r:.60}") not in found:
            found[kind] = minimised(reader, failure)
    return list(found.values())


def fuzz(inputs: int, seed: int, folder: Path, only: str, seconds: float) -> int:
    """How many of the inputs failed in a way of their own; each is saved in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    failures, began_s, last = 0, time.monotonic(), Last(folder)
    with tempfile.TemporaryDirectory() as work:
        chosen = [reader for reader in readers(Path(work)) if only in reader.name]
        share = inputs / sum(reader.weight for reader in chosen)
        left = {reader.name: round(share * reader.weight) for reader in chosen}
        while any(left.values()) and time.monotonic() - began_s < seconds:
            for reader in chosen:
                first = counts.get(reader.name, 0)
                count = min(left[reader.name], max(1, round(_ROUND * reader.weight)))
                with bounded():
                    found = run_round(reader, seed, first, count, last)
                counts[reader.name] = first + count
                left[reader.name] -= count
                for failure in found:
                    failures += 1
                    path = folder / f"{reader.name}.{first}.{type(failure.error).__name__}"
                    path.write_bytes(failure.data)
                    print(f"{failure}\n  saved as {path}", flush=True)
    last.close()
    total, took_s = sum(counts.values()), time.monotonic() - began_s
    for name, count in counts.items():
        print(f"{name:24} {count:10,}")
    print(
        f"{total:,} inputs in {took_s:.0f} s: {total / took_s:,.0f} inputs/s, {failures} failures"
    )
    return failures


def main() -> int:
    """The exit status: 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, default=Path("failing"), help="folder of failing ones")
    parser.add_argument("--only", default="", help="part of the names of readers")
    asked = parser.parse_args()
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    return int(fuzz(asked.inputs, asked.seed, asked.save, asked.only, asked.seconds) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
