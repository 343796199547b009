"""Pure functions for the number of samples of a step on a number of ranks, and the length of its
sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from data.order.batch_ramp import BatchRamp
from hpckit.config.parallel_degrees import degrees
from hpckit.config.spec import DecoderSpec, RunSpec, SequenceRampSpec


class SchedulePoint(NamedTuple):
    """A place in the schedule of the learning rate."""

    at: float
    """What the run has done before, in full steps."""
    total: float
    """What it will have done at its end, in full steps."""


def global_batch(spec: RunSpec, world: int) -> int:
    """Returns the number of samples of a step on `world` ranks."""
    return _on_ranks(spec, world, spec.train.global_batch)


def batch_ramp(spec: RunSpec, world: int) -> BatchRamp | None:
    """Returns how the global batch grows on `world` ranks; None: it has its full size always.

    Raises:
        ValueError: the numbers do not make a ramp.
    """
    ramp = spec.train.batch_ramp
    if ramp is None:
        return None
    sizes = (ramp.start, ramp.increment, spec.train.global_batch)
    start, increment, whole = (_on_ranks(spec, world, size) for size in sizes)
    return BatchRamp(start, increment, ramp.samples, whole)


def samples_before(spec: RunSpec, step: int) -> int:
    """Returns the number of samples of the first `step` steps on the ranks of `launch`."""
    return samples_after(spec, _launched(spec), 0, step)


def samples_after(spec: RunSpec, world: int, seen: int, steps: int) -> int:
    """Returns the number of samples before the step that comes `steps` steps after the one before
    which there were `seen` samples, on `world` ranks."""
    ramp = batch_ramp(spec, world)
    return seen + steps * global_batch(spec, world) if ramp is None else ramp.after(seen, steps)


def present_steps(spec: RunSpec, first: int, last: int) -> float:
    """Returns the steps first .. `last` - 1 in steps as large as the first of them."""
    if spec.train.batch_ramp is None:
        return last - first
    seen = samples_before(spec, first)
    here = samples_before(spec, first + 1) - seen
    return (samples_before(spec, last) - seen) / here


def sequence_lengths(ramp: SequenceRampSpec, full: int) -> Sequence[int]:
    """Returns the lengths of sequences that grow to `full` tokens, the first one first.

    Raises:
        ValueError: the numbers do not make a ramp.
    """
    if ramp.start >= full:
        raise ValueError(f"a start of {ramp.start} tokens is not below model.seq_len={full}")
    if ramp.increment is None:
        times = full // ramp.start
        if full % ramp.start or times & (times - 1):
            raise ValueError(
                f"doubling {ramp.start} tokens never gives model.seq_len={full}; use "
                f"{full} divided by 2, 4, 8 and so on, or an increment"
            )
        return [ramp.start << number for number in range(times.bit_length())]
    if (full - ramp.start) % ramp.increment:
        raise ValueError(
            f"increments of {ramp.increment} tokens do not lead from {ramp.start} to "
            f"model.seq_len={full}; use a divisor of {full - ramp.start}"
        )
    return range(ramp.start, full + 1, ramp.increment)


def sequence_length(spec: RunSpec, seen: int) -> int:
    """Returns the tokens of a sequence in the step before which there were `seen` samples, of
    hpckit's own language model."""
    assert isinstance(spec.model, DecoderSpec)
    ramp = spec.train.sequence_ramp
    if ramp is None:
        return spec.model.seq_len
    lengths = sequence_lengths(ramp, spec.model.seq_len)
    return lengths[min(len(lengths) - 1, seen * (len(lengths) - 1) // ramp.samples)]


def schedule_point(spec: RunSpec, world: int, step: int, seen: int) -> SchedulePoint:
    """Returns the place of step `step` (from 0), before which there were `seen` samples, in the
    schedule of the learning rate on `world` ranks."""
    unit, steps = spec.optim.schedule_unit, spec.train.steps
    if unit == "steps":
        return SchedulePoint(step, steps)
    whole, end = spec.train.global_batch, samples_after(spec, world, seen, max(0, steps - step))
    if unit == "samples":
        return SchedulePoint(seen / whole, end / whole)
    return SchedulePoint(_full_length(spec, seen) / whole, _full_length(spec, end) / whole)


def schedule_length(spec: RunSpec) -> float:
    """Returns what the run does, in full steps, by which the learning rate is scheduled."""
    return schedule_point(spec, _launched(spec), 0, 0).total


def share_of_rank(spec: RunSpec, world: int) -> int:
    """Returns the number of samples of a step that each of `world` ranks takes through its part of
    the model."""
    return global_batch(spec, world) // degrees(spec.parallel, world).data


def micro_batch_count(share: int, micro: int) -> int:
    """Returns the number of micro-batches of equal size in a rank's `share` of the global batch."""
    return max(1, share // micro)


def _on_ranks(spec: RunSpec, world: int, size: int) -> int:
    """Returns what `world` ranks have of a batch of `size` samples on the ranks of `launch`."""
    if spec.elastic.scale_lr is None:
        return size
    full = degrees(spec.parallel, _launched(spec))
    return size // full.data * degrees(spec.parallel, world).data


def _launched(spec: RunSpec) -> int:
    return spec.launch.nodes * spec.launch.nproc_per_node


def _full_length(spec: RunSpec, samples: int) -> float:
    """Returns the tokens of the first samples, in sequences of the full length."""
    ramp = spec.train.sequence_ramp
    if ramp is None or ramp.method == "split" or not isinstance(spec.model, DecoderSpec):
        return samples
    lengths = sequence_lengths(ramp, spec.model.seq_len)
    each = ramp.samples / (len(lengths) - 1)
    found, left = 0.0, float(samples)
    for length in lengths[:-1]:
        here = min(left, each)
        found, left = found + here * length, left - here
    return found / spec.model.seq_len + left
