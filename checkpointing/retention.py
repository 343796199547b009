"""Retention policies, which decide which checkpoints to keep: pure functions of the list of
checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


class RetentionCandidate(Protocol):
    """The attributes of a checkpoint that retention policies use; `catalog.CheckpointInfo` has
    them."""

    @property
    def step(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def created(self) -> float: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def is_suspect(self) -> bool: ...
    @property
    def certified(self) -> str: ...


@dataclass(frozen=True)
class Last:
    """Keep the `n` newest checkpoints."""

    n: int

    def __post_init__(self) -> None:
        _need_count("Last", self.n)

    def reasons(self, newest_first: Sequence[RetentionCandidate]) -> dict[str, str]:
        return {c.id: f"last {self.n}" for c in newest_first[: self.n]}


@dataclass(frozen=True)
class Every:
    """Keep the first checkpoint at or after each multiple of `n` steps.

    "At or after", because saves by the clock rarely fall on a multiple.
    """

    n: int

    def __post_init__(self) -> None:
        _need_count("Every", self.n)

    def reasons(self, newest_first: Sequence[RetentionCandidate]) -> dict[str, str]:
        first = {c.step // self.n: c for c in newest_first if c.step >= self.n or c.step == 0}
        return {c.id: f"every {self.n} steps" for c in first.values()}


@dataclass(frozen=True)
class Best:
    """Keep the `n` best checkpoints by `metric`; of equal ones the newest. One without the metric,
    or with NaN, does not count."""

    metric: str
    mode: Literal["min", "max"] = "min"
    n: int = 1

    def __post_init__(self) -> None:
        _need_count("Best", self.n)
        if self.mode not in ("min", "max"):
            raise ValueError(f"Best(mode=) must be 'min' or 'max', got {self.mode!r}")

    def reasons(self, newest_first: Sequence[RetentionCandidate]) -> dict[str, str]:
        sign = 1 if self.mode == "min" else -1
        known = [c for c in newest_first if not math.isnan(c.metrics.get(self.metric, math.nan))]
        ranked = sorted(known, key=lambda c: sign * c.metrics[self.metric])  # stable: newest first
        return {c.id: f"best {self.metric} ({self.mode})" for c in ranked[: self.n]}


@dataclass(frozen=True)
class Unevaluated:
    """Keep each checkpoint at a multiple of `n` steps that has no metric whose name begins with
    `prefix` yet, for up to `seconds`: until an evaluation has given it one.

    The age of a checkpoint is the time from its save to that of the newest one, so that no clock is
    asked.
    """

    n: int
    seconds: float
    prefix: str = "eval_"

    def __post_init__(self) -> None:
        _need_count("Unevaluated", self.n)
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise ValueError(f"Unevaluated(seconds=) must be a number > 0, got {self.seconds!r}")

    def reasons(self, newest_first: Sequence[RetentionCandidate]) -> dict[str, str]:
        now = max((c.created for c in newest_first), default=0.0)
        return {
            c.id: "not evaluated yet"
            for c in newest_first
            if c.step % self.n == 0
            and now - c.created <= self.seconds
            and not any(name.startswith(self.prefix) for name in c.metrics)
        }


@dataclass(frozen=True)
class Buckets:
    """Keep the newest checkpoint of each of the last `n` periods that have one: `Buckets(24, 3600)`
    keeps one an hour for a day of training. Periods are cut by Unix time."""

    n: int
    seconds: float

    def __post_init__(self) -> None:
        _need_count("Buckets", self.n)
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise ValueError(f"Buckets(seconds=) must be a number > 0, got {self.seconds!r}")

    def reasons(self, newest_first: Sequence[RetentionCandidate]) -> dict[str, str]:
        newest: dict[int, RetentionCandidate] = {}
        for c in sorted(newest_first, key=lambda c: c.created, reverse=True):
            newest.setdefault(int(c.created // self.seconds), c)
        kept = sorted(newest, reverse=True)[: self.n]
        return {newest[period].id: f"one per {_period(self.seconds)}" for period in kept}


@dataclass(frozen=True)
class Only:
    """Keep only some items of the checkpoints that `policy` keeps, such as `Only(("model",),
    Every(1000))`.

    The rest of such a checkpoint can be read and exported, but training cannot resume from it.
    """

    items: tuple[str, ...]
    policy: Last | Every | Best | Buckets | Unevaluated

    def __post_init__(self) -> None:
        if not self.items or not all(self.items):
            raise ValueError(f"Only(items=) requires names of items, got {self.items!r}")

    def reasons(self, newest_first: Sequence[RetentionCandidate]) -> dict[str, str]:
        return {
            id_: f"{'+'.join(self.items)} of {reason}"
            for id_, reason in self.policy.reasons(newest_first).items()
        }


KeepPolicy = Last | Every | Best | Buckets | Unevaluated | Only


@dataclass(frozen=True)
class Decision:
    """The decision about one checkpoint."""

    items: tuple[str, ...] | None  # the items that are kept; None: all of them
    reasons: tuple[str, ...]  # why it is kept, or why it is removed if no items are kept

    @property
    def goes(self) -> bool:
        return self.items == ()


def decide(
    checkpoints: Sequence[RetentionCandidate],
    policies: Sequence[KeepPolicy],
    pins: Mapping[str, str] | None = None,
) -> dict[str, Decision]:
    """Decides, for each checkpoint of one run, which of its items are kept and why; returned by id.

    Args:
        checkpoints: the committed checkpoints, in any order, with unique ids.
        policies: a checkpoint, or an item of it, is kept if any policy keeps it; without policies
            everything is kept. The newest checkpoint is always kept whole, and so is the newest one
            without a difference mark, which `restore` prefers, and the newest certified one without
            such a mark.
        pins: ids that are kept whole whatever the policies say, and why.
    """
    newest_first = sorted(checkpoints, key=lambda c: (c.step, c.created, c.id), reverse=True)
    if not policies:
        return {c.id: Decision(None, ("nothing is pruned",)) for c in newest_first}
    whole: dict[str, list[str]] = {c.id: ["newest"] for c in newest_first[:1]}
    agreeing = next((c.id for c in newest_first if not c.is_suspect), None)
    if agreeing is not None:
        whole.setdefault(agreeing, ["newest whose replicas agree"])
    certified = next((c.id for c in newest_first if c.certified and not c.is_suspect), None)
    if certified is not None:
        whole.setdefault(certified, []).append("newest certified")
    for id_, why in (pins or {}).items():
        whole.setdefault(id_, []).append(why)
    partly: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for policy in policies:
        for id_, reason in policy.reasons(newest_first).items():
            if isinstance(policy, Only):
                partly.setdefault(id_, []).append((policy.items, reason))
            else:
                whole.setdefault(id_, []).append(reason)
    return {c.id: _decision(whole.get(c.id, []), partly.get(c.id, [])) for c in newest_first}


def _decision(whole: list[str], partly: list[tuple[tuple[str, ...], str]]) -> Decision:
    if whole:
        return Decision(None, tuple(whole))
    items = sorted({item for names, _ in partly for item in names})
    reasons = tuple(reason for _, reason in partly) or ("no policy keeps it",)
    return Decision(tuple(items), reasons)


_PERIODS = {"hourly": 3600.0, "daily": 86400.0, "weekly": 7 * 86400.0}
_SYNTAX = (
    "last=N, every=N (steps), best=METRIC[:min|:max][:N], hourly=N, daily=N or weekly=N, "
    "for some items only: ITEM[+ITEM]:POLICY, as in model:every=1000"
)


def parse_keep(text: str) -> KeepPolicy:
    """Parse a retention policy as a user writes it: "last=3", "best=loss", "model:every=1000".

    Raises:
        ValueError: `text` is not a policy; the message lists the known ones.
    """
    head, _, argument = text.partition("=")
    items, _, kind = head.rpartition(":")
    try:
        policy = _parse_policy(kind.strip(), argument.strip())
        return Only(tuple(items.split("+")), policy) if items else policy
    except ValueError as error:
        raise ValueError(f"cannot keep {text!r}: {error}; write {_SYNTAX}") from error


def _parse_policy(kind: str, argument: str) -> Last | Every | Best | Buckets:
    if kind == "best":
        metric, *more = argument.split(":")
        modes = [word for word in more if word in ("min", "max")]
        counts = [word for word in more if word not in ("min", "max")]
        if not metric or len(modes) > 1 or len(counts) > 1:
            raise ValueError(
                "best requires a metric, and at most one of min and max and one number"
            )
        mode: Literal["min", "max"] = "max" if modes == ["max"] else "min"
        return Best(metric, mode, _count(counts[0]) if counts else 1)
    if kind in _PERIODS:
        return Buckets(_count(argument), _PERIODS[kind])
    if kind in ("last", "every"):
        return (Last if kind == "last" else Every)(_count(argument))
    raise ValueError(f"{kind!r} is not a policy")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _period(seconds: float) -> str:
    names = {
        value: name for name, value in zip(("hour", "day", "week"), _PERIODS.values(), strict=True)
    }
    return names.get(seconds, f"{seconds:g} s")


def _need_count(name: str, n: object) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"{name}(n) requires a whole number n >= 1, got {n!r}")
