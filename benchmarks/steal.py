"""Processor time that a virtual machine wanted, and its host gave to others."""

from __future__ import annotations

import sys
from pathlib import Path

NOTABLE = 0.03
_STAT = Path("/proc/stat")
_STEAL = 7  # in the line of all processors: proc_stat(5)
_SUMMED = 8  # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user


def _ticks() -> list[int]:
    return [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1 : _SUMMED + 1]]


_begun = _ticks()


def steal() -> float:
    """Share of the processors' time that was stolen since this process began; says so if it is
    notable."""
    spent = [now - before for now, before in zip(_ticks(), _begun, strict=True)]
    share = spent[_STEAL] / max(sum(spent), 1)
    if share > NOTABLE:
        print(
            f"this machine's host took {share:.0%} of the processors' time for others meanwhile:"
            " seconds measured here are too many",
            file=sys.stderr,
        )
    return share
