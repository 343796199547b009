"""The detection of spikes of the loss, the norm of gradients and the loss scale: pure functions of
the steps so far.

A value is compared with the median of the steps before it, in units of their spread: 1.4826 times
the median absolute deviation, which equals the standard deviation of a normal distribution
(Rousseeuw and Croux 1993). Neither is moved by the spike itself, as a mean and a standard deviation
are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

LEAST = 16
"""The least number of earlier steps with which a step is compared."""
LOSS, NORM, SCALE = NAMES = ("loss", "grad_norm", "loss_scale")
"""The names of the metrics that are watched, where a training function logs them."""

_PER_DEVIATION = 1.4826
_LEAST_OF_LOSS = 0.01
"""The least spread of the loss, as a share of its median."""
_LEAST_OF_NORM = 0.2
"""The least spread of the binary logarithm of the norm, which varies by factors."""
_COLLAPSE = 256.0
"""A loss scale of the median divided by this has collapsed: it was halved eight times."""


@dataclass(frozen=True)
class Outlier:
    """A value that is far from those of the steps before."""

    name: str
    value: float
    limit: float
    """The value that it would have to pass to be one."""

    @property
    def is_final(self) -> bool:
        """Whether training cannot recover from it by itself: it is NaN or infinite."""
        return not math.isfinite(self.value)

    def __str__(self) -> str:
        if self.is_final:
            return f"{self.name} is {self.value}"
        side = "below" if self.value < self.limit else "above"
        return f"{self.name} is {self.value:.4g}, {side} the limit {self.limit:.4g}"


class SpikeDetector:
    """Compares each step with the `window` steps before it that were no outliers.

    Ranks that pass on means over all ranks get the same answers without communication.
    """

    def __init__(self, deviations: float, window: int) -> None:
        """
        Args:
            deviations: a value is an outlier if it is more than so many spreads above the median.
            window: number of steps of which the median and the spread are computed.
        """
        self._deviations = deviations
        self._values = {name: deque[float](maxlen=window) for name in NAMES}

    def update(self, values: Mapping[str, float]) -> tuple[Outlier, ...]:
        """Return the outliers among the metrics of a step, and take note of the others."""
        outliers = []
        for name, known in self._values.items():
            if name not in values or _is_overflow(name, values):
                continue
            outlier = judge(name, values[name], known, self._deviations)
            if outlier is None:
                known.append(values[name])
            else:
                outliers.append(outlier)
        return tuple(outliers)

    @property
    def saved(self) -> dict[str, list[float]]:
        """The earlier values with which the next step is compared, by name, as JSON values."""
        return {name: [*known] for name, known in self._values.items()}

    def load(self, saved: Mapping[str, Iterable[float]]) -> None:
        """Continue with the values that `saved` was, the newest of them if the window is shorter
        now."""
        for name, known in self._values.items():
            known.clear()
            known.extend(float(value) for value in saved.get(name, ()))


def _is_overflow(name: str, values: Mapping[str, float]) -> bool:
    """Whether fp16 gradients have overflowed, whose step the loss scale skips."""
    return name == NORM and not math.isfinite(values[name]) and SCALE in values


def judge(name: str, value: float, known: Sequence[float], deviations: float) -> Outlier | None:
    """Return the outlier that `value` is, by the values `known` of earlier steps; None if it is
    none, or there are too few of them."""
    if not math.isfinite(value):
        return Outlier(name, value, math.nan)
    if len(known) < LEAST:
        return None
    if name == SCALE:
        lowest = median(known) / _COLLAPSE
        return Outlier(name, value, lowest) if value < lowest else None
    limit = _limit_of_norm(known, deviations) if name == NORM else _limit(known, deviations)
    return Outlier(name, value, limit) if value > limit else None


def _limit(known: Sequence[float], deviations: float) -> float:
    middle = median(known)
    return middle + deviations * max(_spread(known, middle), _LEAST_OF_LOSS * abs(middle))


def _limit_of_norm(known: Sequence[float], deviations: float) -> float:
    logs = [math.log2(value) for value in known if value > 0]
    if not logs:
        return math.inf
    middle = median(logs)
    exponent = middle + deviations * max(_spread(logs, middle), _LEAST_OF_NORM)
    return math.ldexp(1.0, 1000) if exponent > 1000 else math.exp2(exponent)


def _spread(values: Sequence[float], middle: float) -> float:
    return _PER_DEVIATION * median(abs(value - middle) for value in values)
