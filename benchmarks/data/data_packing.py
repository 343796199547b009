"""Packs of documents: how much of them is padding, and how even their attention is over ranks.

    python -m benchmarks.data.data_packing [--length 8192] [--documents 40000] [--steps 50]

The lengths are recorded ones: the sizes of the files of Python's standard library and of the
packages that are installed with it, at 4 bytes a token, repeated in a random order up to the number
of documents. No token is read.

Padding: hpckit's best fit in blocks; first fit decreasing in groups of 1,000 documents, as
`datasets.map` gives them to a packer; next fit, as a packer that fills one sequence after the
other; and documents end to end, cut wherever a sequence is full, which has no padding and divides
documents. All split documents that are longer than a sequence, except the last.

Balance: the attention of the costliest rank / the mean over ranks, where each document attends to
itself alone; as ranks take neighbouring streams, and as `balance="attention"` divides the same
steps. "sum" is of a whole step, as DDP waits once for the costliest rank; "micro-batches" is of
ranks that wait for each other at each micro-batch, as FSDP does. With `--linear`, each token costs
so much more, whatever its document.
"""

from __future__ import annotations

import argparse
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common.arm_comparison import write_record
from data.order.balanced_packs import attention_cost, balanced_order
from data.order.keyed_permutation import Ints
from data.order.sample_order import Order
from data.order.sequence_packing import SequencePacker

_SHARD, _GROUP = 64, 1000
_TOKEN_BYTES = 4
_LINEAR = 12 * 4096
"""Operations of a token in a block of width 4096 (24 x width^2), in units of those of attention of
one token to another (2 x width)."""

Packed = tuple[int, int]
"""Sequences, and documents that are divided though they would fit into one."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--linear", type=float, default=_LINEAR)
    given = parser.parse_args()
    lengths = recorded_lengths(given.documents)
    padding = _padding(lengths, given.length)
    balance = _balance(lengths, given)
    _print(padding, balance, lengths, given)
    settings = {**vars(given), "tokens": int(lengths.sum()), "median": float(np.median(lengths))}
    write_record("data_packing", {**settings, "padding": padding, "balance": balance})


def recorded_lengths(count: int) -> Ints:
    """Return the lengths of documents in tokens, shape (count,)."""
    folder = Path(sysconfig.get_path("stdlib"))
    sizes = sorted(path.stat().st_size for path in folder.rglob("*.py") if path.is_file())
    sizes += sorted(p.stat().st_size for p in Path(np.__file__).parent.parent.rglob("*.py"))
    tokens = np.array([-(-size // _TOKEN_BYTES) for size in sizes if size], np.int64)
    random = np.random.default_rng(0)
    return np.concatenate([random.permutation(tokens) for _ in range(-(-count // tokens.size))])[
        :count
    ]


def _packer(lengths: Ints, length: int) -> SequencePacker:
    counts = np.diff(np.append(np.arange(0, lengths.size, _SHARD), lengths.size))
    order = Order(counts)

    def tokens(positions: Ints) -> Ints:
        shards, samples = order.locate(positions)
        return np.asarray(lengths[shards * _SHARD + samples], np.int64)

    return SequencePacker(order, tokens, length=length)


def _padding(lengths: Ints, length: int) -> dict[str, dict[str, float]]:
    arms: dict[str, Callable[[], Packed]] = {
        "hpckit, best fit in blocks": lambda: (_count(_packer(lengths, length)), 0),
        "first fit decreasing": lambda: (
            _first_fit_decreasing(_pieces(lengths, length), length),
            0,
        ),
        "next fit": lambda: (_next_fit(_pieces(lengths, length), length), 0),
        "end to end, cut": lambda: _cut(lengths, length),
    }
    found = {}
    for name, arm in arms.items():
        began_s = time.process_time()
        sequences, divided = arm()
        cpu_s = time.process_time() - began_s
        found[name] = {
            "sequences": sequences,
            "padding": 1 - float(lengths.sum()) / (sequences * length),
            "divided": divided / lengths.size,
            "cpu_us_of_a_document": cpu_s / lengths.size * 1e6,
        }
    return found


def _count(packer: SequencePacker) -> int:
    """Return the sequences of an epoch."""
    cursor, end, found = 0, packer.cursor_of_epoch(1), 0
    while cursor < end:
        step = packer.step(cursor, 256, "pad")
        found, cursor = found + int(step.mask.sum()), step.after
    return found


def _pieces(lengths: Ints, length: int) -> list[int]:
    pieces = []
    for tokens in lengths.tolist():
        pieces += [length] * (tokens // length)
        pieces += [tokens % length] if tokens % length else []
    return pieces


def _first_fit_decreasing(pieces: list[int], length: int) -> int:
    total = 0
    for at in range(0, len(pieces), _GROUP):
        rooms: list[int] = []
        for piece in sorted(pieces[at : at + _GROUP], reverse=True):
            number = next((n for n, room in enumerate(rooms) if room >= piece), None)
            if number is None:
                rooms.append(length - piece)
            else:
                rooms[number] -= piece
        total += len(rooms)
    return total


def _next_fit(pieces: list[int], length: int) -> int:
    total, room = 0, 0
    for piece in pieces:
        if piece > room:
            total, room = total + 1, length
        room -= piece
    return total


def _cut(lengths: Ints, length: int) -> Packed:
    ends = np.cumsum(lengths)
    crossed = (ends - 1) // length - (ends - lengths) // length
    divided = int(((crossed > 0) & (lengths <= length)).sum())
    return -(-int(ends[-1]) // length), divided


def _balance(lengths: Ints, given: argparse.Namespace) -> list[dict[str, Any]]:
    packer, cursor = _packer(lengths, given.length), 0
    steps = []
    for _ in range(given.steps):
        step = packer.step(cursor, given.batch)
        streams = np.array([pack.stream for pack in step.packs])
        squares = np.array([attention_cost(pack.lengths, given.length) for pack in step.packs])
        steps.append((np.argsort(streams, kind="stable"), squares))
        cursor = step.after
    found = []
    for world in (8, 32, 128):
        for micro in (1, 2):
            for linear in (0.0, given.linear):
                ratios: dict[str, list[float]] = {}
                cpu_s = 0.0
                for before, squares in steps:
                    costs = squares + linear * given.length
                    began_s = time.process_time()
                    after = balanced_order(costs, world, micro)
                    cpu_s += time.process_time() - began_s
                    for name, order in (("before", before), ("after", after)):
                        each = costs[order].reshape(world, -1, micro).sum(axis=2)
                        ratios.setdefault(f"{name}, sum", []).append(_ratio(each.sum(axis=1)))
                        waited = float(each.max(axis=0).sum() / each.mean(axis=0).sum())
                        ratios.setdefault(f"{name}, micro-batches", []).append(waited)
                means = {name: float(np.mean(values)) for name, values in ratios.items()}
                rest = {"world": world, "micro_batch": micro, "linear": linear}
                found.append({**rest, **means, "cpu_ms_of_a_step": cpu_s / len(steps) * 1e3})
    return found


def _ratio(costs: Any) -> float:
    return float(costs.max() / costs.mean())


def _print(
    padding: dict[str, dict[str, float]],
    balance: list[dict[str, Any]],
    lengths: Ints,
    given: argparse.Namespace,
) -> None:
    console = Console(width=140)
    table = Table("packer", "sequences", "padding", "documents divided", "µs of a document")
    for name, one in padding.items():
        numbers = f"{one['sequences']:,.0f}", f"{one['padding']:.3%}", f"{one['divided']:.1%}"
        table.add_row(name, *numbers, f"{one['cpu_us_of_a_document']:.1f}")
    console.print(f"{lengths.size:,} documents, {lengths.sum():,} tokens, of {given.length} each")
    console.print(table)
    names = ("before, sum", "after, sum", "before, micro-batches", "after, micro-batches")
    table = Table("ranks", "micro-batch", "linear", *names, "ms of a step")
    for each in balance:
        ratios = (f"{each[name]:.3f}" for name in names)
        first = str(each["world"]), str(each["micro_batch"]), f"{each['linear']:.0f}"
        table.add_row(*first, *ratios, f"{each['cpu_ms_of_a_step']:.1f}")
    console.print(f"costliest rank / mean of ranks, {given.steps} steps of {given.batch}")
    console.print(table)


if __name__ == "__main__":
    main()
