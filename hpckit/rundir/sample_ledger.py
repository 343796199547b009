"""Counts what was really seen, from the ledgers of all ranks."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_FILE = re.compile(r"g(\d+)-rank(\d+)\.jsonl$")


@dataclass(frozen=True)
class LedgerEntry:
    """What one rank took in one step."""

    step: int
    generation: int
    attempt: int
    rank: int
    positions: tuple[int, ...]
    """Of its samples, in the stream over all epochs."""
    keys: tuple[str, ...]


@dataclass(frozen=True)
class EpochCount:
    """How often the samples of one epoch were seen in the kept steps."""

    epoch: int
    """From 0."""
    samples: int
    """Samples that the dataset has."""
    due: int
    """Samples of it that the kept steps take: all, but for the epoch in which the run ends."""
    seen: int
    """Different samples that were seen."""
    twice: tuple[str, ...]
    """Keys seen more than once."""

    @property
    def missing(self) -> int:
        """Samples that were due and not seen."""
        return self.due - self.seen

    @property
    def complete(self) -> bool:
        return self.seen == self.samples

    @property
    def exact(self) -> bool:
        """Complete, and each sample once."""
        return self.complete and not self.twice


def read_ledgers(folder: Path) -> list[LedgerEntry]:
    """All entries of the ledgers in `folder`; a line cut short by a kill is no entry."""
    return [
        entry
        for path in sorted(folder.glob("*.jsonl"))
        if (match := _FILE.search(path.name))
        for entry in _entries(path, int(match[1]), int(match[2]))
    ]


def kept_entries(entries: Iterable[LedgerEntry], last_step: int) -> list[LedgerEntry]:
    """The entries that count: of each step to `last_step`, those of the last life that did it."""
    by_step: dict[int, list[LedgerEntry]] = {}
    for entry in entries:
        if entry.step <= last_step:
            by_step.setdefault(entry.step, []).append(entry)
    return [entry for step in sorted(by_step) for entry in _of_last_life(by_step[step])]


def count_epochs(entries: Iterable[LedgerEntry], samples: int, until: int) -> list[EpochCount]:
    """How often each sample was seen, epoch by epoch, in the first `until` positions of a stream.

    An epoch is `samples` positions long.
    """
    epochs = range(-(-until // samples))
    seen: dict[int, Counter[str]] = {epoch: Counter() for epoch in epochs}
    for entry in entries:
        for position, key in zip(entry.positions, entry.keys, strict=True):
            seen.setdefault(position // samples, Counter())[key] += 1
    return [
        EpochCount(
            epoch=epoch,
            samples=samples,
            due=max(0, min(samples, until - epoch * samples)),
            seen=len(keys),
            twice=tuple(sorted(key for key, count in keys.items() if count > 1)),
        )
        for epoch, keys in sorted(seen.items())
    ]


def _of_last_life(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    life = max((entry.generation, entry.attempt) for entry in entries)
    return [entry for entry in entries if (entry.generation, entry.attempt) == life]


def _entries(path: Path, generation: int, rank: int) -> Iterator[LedgerEntry]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # cut short by a kill: nobody finished that step
        yield LedgerEntry(
            step=fields["step"],
            generation=generation,
            attempt=fields["attempt"],
            rank=rank,
            positions=tuple(fields["positions"]),
            keys=tuple(fields["keys"]),
        )
