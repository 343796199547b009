"""Rules for the ramps of the batch and of sequences, as pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.config.batch_size import (
    batch_ramp,
    samples_before,
    sequence_length,
    sequence_lengths,
)
from hpckit.config.entry_points import is_built_in
from hpckit.config.parallel_degrees import ParallelDegrees
from hpckit.config.spec import DecoderSpec, RunSpec


def ramp_violations(spec: RunSpec) -> Iterator[str]:
    """Yields what is wrong with the ramps on any number of ranks, one line each, the key first."""
    ramp, one = spec.train.batch_ramp, "with debug.overfit, whose batch is always the first one"
    if spec.debug.overfit and spec.train.sequence_ramp is not None:
        yield f"train.sequence_ramp: must be null {one}"
    if spec.debug.overfit and spec.optim.schedule_unit != "steps":
        yield f"optim.schedule_unit: must be steps {one}"
    if ramp is not None:
        if spec.debug.overfit:
            yield f"train.batch_ramp: must be null {one}"
        problem = _batch_problem(spec)
        if problem:
            yield f"train.batch_ramp: {problem}"
    yield from _sequence_violations(spec)


def ramp_notes(spec: RunSpec) -> Iterator[str]:
    """Yields a line about each ramp of a valid spec that the run ends within."""
    ramp, sequence, steps = spec.train.batch_ramp, spec.train.sequence_ramp, spec.train.steps
    last, end = samples_before(spec, steps - 1), samples_before(spec, steps)
    there = f"{steps:,} steps take {end:,} samples"
    if ramp is not None and (size := end - last) < spec.train.global_batch:
        yield (
            f"train.batch_ramp: grows over {ramp.samples:,} samples, and {there}: the batch ends "
            f"at {size} of train.global_batch={spec.train.global_batch}"
        )
    if sequence is not None and isinstance(spec.model, DecoderSpec):
        length = sequence_length(spec, last)
        if length < spec.model.seq_len:
            yield (
                f"train.sequence_ramp: grows over {sequence.samples:,} samples, and {there}: "
                f"sequences end at {length} of model.seq_len={spec.model.seq_len} tokens"
            )


def uneven_sizes(spec: RunSpec, parts: int) -> Iterator[str]:
    """Yields a violation if a batch of the ramp cannot be divided over `parts` of the ranks."""
    ramp = spec.train.batch_ramp
    if ramp is None or _batch_problem(spec):
        return
    for name, size in (("start", ramp.start), ("increment", ramp.increment)):
        if size % parts:
            yield (
                f"train.batch_ramp.{name}: {size} samples cannot be divided evenly over {parts} "
                f"parts of the ranks, as each batch of the ramp has to be; use a multiple of "
                f"{parts}"
            )


def sequence_violations_of_world(spec: RunSpec, found: ParallelDegrees) -> Iterator[str]:
    """Yields violations of sequences that grow on a number of ranks."""
    ramp, model = spec.train.sequence_ramp, spec.model
    if ramp is None or not isinstance(model, DecoderSpec) or any(_sequence_violations(spec)):
        return
    if found.pipeline > 1:
        yield (
            f"train.sequence_ramp: the {found.pipeline} ranks of a pipeline exchange sequences of "
            "one length; use parallel.pipeline=1"
        )
    for length in sequence_lengths(ramp, model.seq_len):
        if length % found.tensor:
            yield (
                f"train.sequence_ramp: {found.tensor} ranks (parallel.tensor) do not divide "
                f"sequences of {length} tokens; use multiples of {found.tensor}"
            )
            return


def ramp_sizes(spec: RunSpec, world: int) -> Sequence[int]:
    """Returns the batch sizes of the ramp on `world` ranks, the full one last; empty if there is no
    ramp, or none that can be used."""
    try:
        ramp = batch_ramp(spec, world)
    except ValueError:
        return ()
    return () if ramp is None else ramp.sizes


def _batch_problem(spec: RunSpec) -> str | None:
    try:
        batch_ramp(spec, spec.launch.nodes * spec.launch.nproc_per_node)
    except ValueError as error:
        return str(error)
    return None


def _sequence_violations(spec: RunSpec) -> Iterator[str]:
    ramp, model = spec.train.sequence_ramp, spec.model
    if ramp is None:
        return
    key = "train.sequence_ramp"
    if not is_built_in(spec) or not isinstance(model, DecoderSpec):
        yield f"{key}: is for hpckit's own language models; got entry={spec.entry}"
        return
    try:
        lengths = sequence_lengths(ramp, model.seq_len)
    except ValueError as error:
        yield f"{key}: {error}"
        return
    for length in lengths if ramp.method == "split" else ():
        if model.seq_len % length:
            yield (
                f"{key}: samples of model.seq_len={model.seq_len} cannot be split into sequences "
                f"of {length} tokens; leave increment out, so that the length doubles, or use "
                "method=truncate"
            )
            return
