"""Counts the samples that a run has really used, from the sample ledgers of all ranks."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from data.order.skipped_ranges import NOTHING_SKIPPED, SkippedRanges

_FILE = re.compile(r"g(\d+)-rank(\d+)\.jsonl$")


@dataclass(frozen=True)
class LedgerEntry:
    """The samples of one rank in one step."""

    step: int
    generation: int
    attempt: int
    rank: int
    positions: tuple[int, ...]
    """Positions of the samples in the stream, over all epochs."""
    keys: tuple[str, ...]


@dataclass(frozen=True)
class EpochCount:
    """How often the kept steps used the samples of one epoch."""

    epoch: int
    """Number of the epoch, from 0."""
    samples: int
    """Number of samples of the dataset."""
    due: int
    """Number of samples of the epoch that the kept steps take: all that are not left out, except in
    the epoch in which the run ends."""
    seen: int
    """Number of different samples that were used."""
    twice: tuple[str, ...]
    """Keys of samples that were used more than once."""
    left_out: int = 0
    """Number of samples that the run leaves out, as after a spike."""

    @property
    def missing(self) -> int:
        """Number of samples that were due and not used."""
        return self.due - self.seen

    @property
    def complete(self) -> bool:
        return self.seen == self.samples - self.left_out

    @property
    def exact(self) -> bool:
        """Whether the epoch is complete with each sample used once."""
        return self.complete and not self.twice


def read_ledgers(folder: Path) -> list[LedgerEntry]:
    """Returns all entries of the ledgers in `folder`. A line cut short by a kill is ignored."""
    return [
        entry
        for path in sorted(folder.glob("*.jsonl"))
        if (match := _FILE.search(path.name))
        for entry in _entries(path, int(match[1]), int(match[2]))
    ]


def kept_entries(entries: Iterable[LedgerEntry], last_step: int) -> list[LedgerEntry]:
    """Returns the entries that count: for each step up to `last_step`, those of the last attempt
    that took it."""
    by_step: dict[int, list[LedgerEntry]] = {}
    for entry in entries:
        if entry.step <= last_step:
            by_step.setdefault(entry.step, []).append(entry)
    return [entry for step in sorted(by_step) for entry in _of_last_attempt(by_step[step])]


def count_epochs(
    entries: Iterable[LedgerEntry],
    samples: int,
    until: int,
    left_out: SkippedRanges = NOTHING_SKIPPED,
    recurring: Mapping[str, int] | None = None,
) -> list[EpochCount]:
    """Returns how often each sample was used, by epoch, in the first `until` positions of a stream.

    An epoch is `samples` positions long. The positions `left_out` were not to be used.

    Args:
        recurring: the keys of samples that are left out, too, in all epochs after the given one. At
            which positions these are is not known, so in the last epoch, which may be incomplete,
            as many as are missing count as left out.
    """
    firsts = sorted((recurring or {}).values())
    epochs = range(-(-until // samples))
    seen: dict[int, Counter[str]] = {epoch: Counter() for epoch in epochs}
    for entry in entries:
        for position, key in zip(entry.positions, entry.keys, strict=True):
            seen.setdefault(position // samples, Counter())[key] += 1
    return [
        EpochCount(
            epoch=epoch,
            samples=samples,
            due=_due(
                _kept(left_out, epoch * samples, min(until, (epoch + 1) * samples)),
                len(keys),
                bisect_left(firsts, epoch),
                is_whole=(epoch + 1) * samples <= until,
            ),
            seen=len(keys),
            twice=tuple(sorted(key for key, count in keys.items() if count > 1)),
            left_out=samples
            - _kept(left_out, epoch * samples, (epoch + 1) * samples)
            + bisect_left(firsts, epoch),
        )
        for epoch, keys in sorted(seen.items())
    ]


def recurring_samples(
    entries: Iterable[LedgerEntry], samples: int, left_out: SkippedRanges
) -> dict[str, int]:
    """Returns the keys of the samples at the positions `left_out`, each with its epoch, as far as
    an attempt has read them.

    Args:
        entries: of all attempts, also of those that count no more.
        samples: number of samples of an epoch.
    """
    found: dict[str, int] = {}
    for entry in entries if left_out else ():
        for position, key in zip(entry.positions, entry.keys, strict=True):
            if left_out.next_kept(position) != position:
                epoch = position // samples
                found[key] = min(epoch, found.get(key, epoch))
    return found


def _due(kept: int, seen: int, recurring: int, *, is_whole: bool) -> int:
    """Returns how many of `kept` positions are due, if at most `recurring` of them are left out:
    all of these, if the epoch is whole."""
    return kept - recurring if is_whole else max(kept - recurring, min(seen, kept))


def _kept(left_out: SkippedRanges, first: int, end: int) -> int:
    """Returns how many of the positions first..end - 1 are not left out."""
    return left_out.kept_before(max(first, end)) - left_out.kept_before(first)


def _of_last_attempt(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    newest = max((entry.generation, entry.attempt) for entry in entries)
    return [entry for entry in entries if (entry.generation, entry.attempt) == newest]


def _entries(path: Path, generation: int, rank: int) -> Iterator[LedgerEntry]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # cut short by a kill: no rank finished that step
        yield LedgerEntry(
            step=fields["step"],
            generation=generation,
            attempt=fields["attempt"],
            rank=rank,
            positions=tuple(fields["positions"]),
            keys=tuple(fields["keys"]),
        )
