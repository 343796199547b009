"""The statistics of the loaders of all ranks between two step records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

from data import Usage

SLOW = 0.1
"""Share of the time spent waiting for data above which training is reported as slowed down."""

LONG_S = 30.0
"""Seconds over which the share is judged, and the shortest time between two reports."""

_COUNTS = (  # of the node stores
    *("hits", "misses", "bypasses", "bytes_fetched"),
    *("bytes_from_peers", "peer_failures"),
)
_USAGE = len(fields(Usage))
_READY = [field.name for field in fields(Usage)].index("ready")  # the present value, not a sum
NAMES = frozenset(
    (
        *("data_wait_share", "data_bytes_per_s", "data_batches_ready", "data_errors"),
        *("data_hits", "data_misses", "data_bypasses", "data_fetched_bytes_per_s"),
        *("data_peer_bytes_per_s", "data_peer_failures"),
    )
)


class MeasuredLoader(Protocol):
    """What tells where the time of a loader goes: a `data.Loader`, or a `StepSource`."""

    @property
    def usage(self) -> Usage:
        """The time spent so far, by kind."""

    @property
    def store_counts(self) -> Mapping[str, float]:
        """The counters of the node stores that it reads from; empty if there are none."""


class LoaderStatistics:
    """The statistics of one rank's loader."""

    def __init__(self, loader: MeasuredLoader) -> None:
        self._loader = loader
        self._before = self._now()

    def take(self) -> list[float]:
        """Return the statistics since the last call, or since the start, for a sum over ranks."""
        now, before = self._now(), self._before
        self._before = now
        counts = [a - b for a, b in zip(now[1], before[1], strict=True)]
        usage = [a - b for a, b in zip(now[0], before[0], strict=True)]
        usage[_READY] = now[0][_READY]
        return [*usage, *counts]

    def _now(self) -> tuple[list[float], list[float]]:
        counts, usage = self._loader.store_counts, vars(self._loader.usage)
        return [*map(float, usage.values())], [counts.get(name, 0.0) for name in _COUNTS]


class LoaderDiagnosis:
    """Decides when to report whether training waits for data, and what the bottleneck of the
    loaders is."""

    def __init__(self) -> None:
        self._bound = "consumer"
        self._sums: list[float] | None = None
        self._seconds = 0.0

    def update(self, sums: Sequence[float], seconds: float) -> dict[str, Any] | None:
        """Return the fields of an event if the diagnosis over `LONG_S` seconds or more has changed;
        else None.

        Args:
            sums: what `LoaderStatistics.take` returned for the last `seconds`, summed over ranks.
        """
        before = self._sums or [0.0] * len(sums)
        self._sums = [a + b for a, b in zip(before, sums, strict=True)]
        self._seconds += seconds
        if self._seconds < LONG_S:
            return None
        usage = usage_of(self._sums)
        self._sums, self._seconds = None, 0.0
        bound = usage.bound
        is_slow = usage.wait_share > SLOW and bound != "start"
        if bound == self._bound or not (is_slow or bound == "consumer"):
            return None
        self._bound = bound
        return {"bound": bound, "diagnosis": usage.diagnosis()}


def usage_of(sums: Sequence[float]) -> Usage:
    """Return the usage of all ranks together; `ready` is the number of ready batches of all
    ranks."""
    return Usage(*sums[:_USAGE])  # type: ignore[arg-type]


def record_of(sums: Sequence[float], world: int, seconds: float) -> dict[str, float]:
    """Return the values of a step record from what `LoaderStatistics.take` returned, summed over
    `world` ranks."""
    usage = usage_of(sums)
    hits, misses, bypasses, fetched, from_peers, peer_failures = sums[_USAGE:]
    return {
        "data_wait_share": usage.wait_share,
        "data_bytes_per_s": usage.bytes / seconds,
        "data_batches_ready": usage.ready / world,
        "data_errors": usage.errors,
        "data_hits": hits,
        "data_misses": misses,
        "data_bypasses": bypasses,
        "data_fetched_bytes_per_s": fetched / seconds,
        "data_peer_bytes_per_s": from_peers / seconds,
        "data_peer_failures": peer_failures,
    }
