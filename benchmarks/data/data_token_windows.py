"""Windows of tokens from a flat file: hpckit's loader beside a plain loop over a memmap.

    python -m benchmarks.data.data_token_windows [--mib 256] [--rounds 5] [--seconds 3]

The plain loop is that of nanoGPT: it maps the file for each batch, takes windows at random places
and converts them to int64. hpckit reads each window once per epoch, in its order, with its keys and
a state. "windows" are as stored, of uint16; "packed" are sequences of int64 with the boundaries of
their documents, as the training function takes them: of windows, and of documents that end with a
token. The file is in the page cache. Processor time is counted, of all threads, so that other work
on the machine matters less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.scratch import scratch
from data import Loader, Packing, TokenFiles, open_dataset

END, VOCAB, MEAN = 50256, 50257, 700
LENGTH, BATCH = 1025, 12
"""As of nanoGPT, and the token that comes next."""


def write_tokens(path: Path, mib: int) -> None:
    """Random documents of 700 tokens on average, as GPT-2 would number them."""
    rng = np.random.default_rng(0)
    count = mib * (1 << 20) // 2
    tokens = rng.integers(0, END, count, dtype=np.uint16)
    tokens[rng.integers(0, count, count // MEAN)] = END
    tokens.tofile(path)


def memmap_batches(path: Path) -> Iterator[int]:
    """Yields the tokens of each batch of the plain loop."""
    rng = np.random.default_rng(1)
    while True:
        data = np.memmap(path, np.uint16, "r")  # anew, as nanoGPT does against a leak
        places = rng.integers(0, len(data) - LENGTH, BATCH)
        yield np.stack([data[i : i + LENGTH].astype(np.int64) for i in places]).size


def window_batches(path: Path) -> Iterator[int]:
    """Yields the tokens of each batch of windows as they are stored."""
    dataset = open_dataset(path, token_files=TokenFiles(block_size=LENGTH))
    for batch in Loader(dataset, global_batch=BATCH):
        yield sum(len(sample["bin"]) for sample in batch.data) // 2


def packed_batches(path: Path, options: TokenFiles) -> Iterator[int]:
    """Yields the tokens of each batch of packed sequences."""
    dataset = open_dataset(path, token_files=options)
    for batch in Loader(dataset, global_batch=BATCH, pack=Packing(LENGTH, vocab=VOCAB)):
        yield batch.data.tokens.size


def measured(batches: Iterator[int], seconds: float) -> float:
    """Returns million tokens of the next batches per second of processor time."""
    tokens, began_s = 0, time.process_time()
    while (spent_s := time.process_time() - began_s) < seconds:
        tokens += next(batches)
    return tokens / spent_s / 1e6


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with scratch() as folder:
        path = folder / "train.bin"
        write_tokens(path, options.mib)
        sources: dict[str, Iterator[int]] = {
            "memmap": memmap_batches(path),
            "hpckit, windows": window_batches(path),
            "hpckit, packed windows": packed_batches(path, TokenFiles(block_size=LENGTH)),
            "hpckit, packed documents": packed_batches(path, TokenFiles(end_of_text=END)),
        }
        for batches in sources.values():
            next(batches)  # opened, and the file in the page cache
        arms: dict[str, Callable[[], float]] = {
            name: partial(measured, batches, options.seconds) for name, batches in sources.items()
        }
        found = interleave(arms, options.rounds)
    comparison = ArmComparison(
        "data_token_windows", "memmap", "million tokens per CPU second", found
    )
    report(comparison, {**vars(options), "length": LENGTH, "batch": BATCH})


if __name__ == "__main__":
    main()
