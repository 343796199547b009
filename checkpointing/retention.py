"""Which checkpoints to keep: a pure function over the list of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


class Checkpoint(Protocol):
    """What retention looks at; `catalog.CheckpointInfo` has it."""

    @property
    def step(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def created(self) -> float: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Last:
    """Keep the `n` newest."""

    n: int

    def __post_init__(self) -> None:
        _need_count("Last", self.n)

    def reasons(self, newest_first: Sequence[Checkpoint]) -> dict[str, str]:
        return {c.id: f"last {self.n}" for c in newest_first[: self.n]}


@dataclass(frozen=True)
class Every:
    """Keep a milestone per `n` steps: the first checkpoint at or after each multiple of `n`.

    "At or after", because saves by the clock hardly ever fall on a multiple.
    """

    n: int

    def __post_init__(self) -> None:
        _need_count("Every", self.n)

    def reasons(self, newest_first: Sequence[Checkpoint]) -> dict[str, str]:
        first = {c.step // self.n: c for c in newest_first if c.step >= self.n or c.step == 0}
        return {c.id: f"every {self.n} steps" for c in first.values()}


@dataclass(frozen=True)
class Best:
    """Keep the `n` best by `metric`; of equals the newest. No metric, or NaN: not counted."""

    metric: str
    mode: Literal["min", "max"] = "min"
    n: int = 1

    def __post_init__(self) -> None:
        _need_count("Best", self.n)
        if self.mode not in ("min", "max"):
            raise ValueError(f"Best(mode=) is 'min' or 'max', got {self.mode!r}")

    def reasons(self, newest_first: Sequence[Checkpoint]) -> dict[str, str]:
        sign = 1 if self.mode == "min" else -1
        known = [c for c in newest_first if not math.isnan(c.metrics.get(self.metric, math.nan))]
        ranked = sorted(known, key=lambda c: sign * c.metrics[self.metric])  # stable: newest first
        return {c.id: f"best {self.metric} ({self.mode})" for c in ranked[: self.n]}


KeepPolicy = Last | Every | Best


def keep_reasons(
    checkpoints: Sequence[Checkpoint], policies: Sequence[KeepPolicy]
) -> dict[str, list[str]]:
    """Ids to keep, each with why. The newest is always kept; no policies at all keep everything.

    Args:
        checkpoints: the committed checkpoints of one run, in any order, ids unique.
        policies: a checkpoint stays if any one of them wants it.
    """
    newest_first = sorted(checkpoints, key=lambda c: (c.step, c.created, c.id), reverse=True)
    if not policies:
        return {c.id: ["nothing is pruned"] for c in newest_first}
    kept: dict[str, list[str]] = {c.id: ["newest"] for c in newest_first[:1]}
    for policy in policies:
        for id_, reason in policy.reasons(newest_first).items():
            kept.setdefault(id_, []).append(reason)
    return kept


def _need_count(name: str, n: object) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"{name}(n) needs a whole number n >= 1, got {n!r}")
