"""The ramp of the batch size: the samples of a global step as a pure function of the samples
before it, so that a resumed stream has the same steps on any number of ranks.

As `--rampup-batch-size START INCREMENT SAMPLES` of Megatron-LM: the batch begins with START
samples and grows by INCREMENT at equal distances, up to its full size after SAMPLES samples.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchRamp:
    """A batch size that grows from `start` to `size` over the first `samples` samples.

    Raises ValueError for numbers that make no ramp.
    """

    start: int
    """Samples of the first global step."""
    increment: int
    """Samples by which the batch grows at a time."""
    samples: int
    """Samples after which it has its full size."""
    size: int
    """Samples of a global step after the ramp."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            try:
                object.__setattr__(self, name, operator.index(value))
            except TypeError as error:
                raise ValueError(
                    f"a ramp's {name} must be a whole number, got {value!r}"
                ) from error
        if min(self.start, self.increment, self.samples) < 1 or self.start >= self.size:
            raise ValueError(
                f"a ramp needs start, increment and samples of at least 1 and a start below the "
                f"full batch of {self.size}; got {self.start}, {self.increment}, {self.samples}"
            )
        if (self.size - self.start) % self.increment:
            below = (self.size - self.start) // self.increment * self.increment
            raise ValueError(
                f"increments of {self.increment} do not lead from {self.start} to {self.size}; use "
                f"a divisor of {self.size - self.start}, or a start of {self.size - below}"
            )

    @property
    def sizes(self) -> range:
        """All batch sizes, the first one first."""
        return range(self.start, self.size + 1, self.increment)

    def size_at(self, seen: int) -> int:
        """Return the samples of the step before which there were `seen` samples."""
        return self.start + self.increment * self._number(seen)

    def stages(self, seen: int) -> Iterator[tuple[int, int | None]]:
        """Yield (batch size, number of steps with it) from the step on before which there were
        `seen` samples; the last number is None, as it has no end."""
        for number in range(self._number(seen), self._count):
            size, end = self.start + number * self.increment, self._begin(number + 1)
            steps = max(0, -(-(end - seen) // size))
            if steps:
                yield size, steps
            seen += steps * size
        yield self.size, None

    def after(self, seen: int, steps: int) -> int:
        """Return the samples before the step that comes `steps` steps after the one before which
        there were `seen` samples. Raises ValueError for a negative number of steps."""
        if steps < 0:
            raise ValueError(f"steps must not be negative, got {steps}")
        for size, count in self.stages(seen):
            here = steps if count is None else min(steps, count)
            seen, steps = seen + here * size, steps - here
            if not steps:
                break
        return seen

    def steps_between(self, seen: int, end: int) -> int:
        """Return the number of steps from the one before which there were `seen` samples to the
        first one before which there were at least `end`."""
        steps = 0
        for size, count in self.stages(seen):
            left = max(0, -(-(end - seen) // size))
            here = left if count is None else min(left, count)
            seen, steps = seen + here * size, steps + here
            if seen >= end:
                break
        return steps

    @property
    def _count(self) -> int:
        return (self.size - self.start) // self.increment

    def _number(self, seen: int) -> int:
        """Return how often the batch has grown before a step."""
        return min(self._count, seen * self._count // self.samples)

    def _begin(self, number: int) -> int:
        """Return the least number of samples before a step of this growth."""
        return -(-number * self.samples // self._count)
