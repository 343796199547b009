"""Transforms and collates of the tests of reader processes: what a child can import."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from data.read.batch import SampleContext


class OddError(ValueError):
    """Of the user's own."""


def number(sample: dict[str, Any], context: SampleContext) -> tuple[int, float]:
    """The sample's number and its position's own randomness."""
    return int(sample["txt"]), float(context.rng.random())


def arrays(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Arrays, and who made them."""
    numbers = np.array([int(item["txt"]) for item in items])
    return {"pid": os.getpid(), "numbers": numbers, "large": np.repeat(numbers, 5000)}


def larger(items: list[dict[str, Any]]) -> Any:
    """One large batch among small ones."""
    numbers = [int(item["txt"]) for item in items]
    return b"x" * (5_000_000 if 77 in numbers else 10)


def bad_at_77(sample: dict[str, Any], _: SampleContext) -> int:
    found = int(sample["txt"])
    if found == 77:
        raise OddError("seventy-seven")
    return found


def bad_sevens(sample: dict[str, Any], _: SampleContext) -> int:
    found = int(sample["txt"])
    if found % 7 == 0:
        raise OddError(f"{found} is a multiple of 7")
    return found


def dies_at_77(sample: dict[str, Any], _: SampleContext) -> int:
    if sample["txt"] == b"77":
        os.kill(os.getpid(), signal.SIGKILL)
    return int(sample["txt"])


def exits_at_77(sample: dict[str, Any], _: SampleContext) -> int:
    if sample["txt"] == b"77":
        os._exit(3)
    return int(sample["txt"])


def leaves_a_child_and_dies(items: list[Any]) -> list[Any]:
    """The child has all that its parent had open, for a while."""
    if os.fork() == 0:
        time.sleep(3)
        os._exit(0)
    os._exit(9)


def unpicklable(items: list[Any]) -> Any:
    return lambda: items


class Unimportable:
    """Can be pickled, and cannot be loaded by another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (os.getpid(),)

    def __call__(self, sample: Any, context: Any) -> Any:
        return sample


def _load(pid: int) -> Any:
    if os.getpid() != pid:
        raise ModuleNotFoundError("No module named 'decoder'")
    return Unimportable()


class Waiting:
    """Waits for a file to be gone before the sample 77."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, sample: dict[str, Any], _: SampleContext) -> int:
        while sample["txt"] == b"77" and self.path.exists():
            time.sleep(0.01)
        return int(sample["txt"])


def trainer() -> None:
    """A program: says who its readers are, then waits; or does what its arguments say."""
    from data import Loader, open_dataset

    loader = Loader(open_dataset(sys.argv[1]), global_batch=8, workers=2, collate=arrays)
    iterator = iter(loader)
    pids = [next(iterator).data["pid"] for _ in range(2)]
    print(*pids, flush=True)
    match sys.argv[2]:
        case "wait":
            sys.stdin.read()
            print(len(next(iterator).keys), flush=True)
        case "close":
            loader.close()
            assert not multiprocessing.active_children()
        case "raise":
            raise SystemExit(0)
        case "cycle":
            iterator.self = iterator  # type: ignore[attr-defined]
        case "end":
            pass


if __name__ == "__main__":
    trainer()
