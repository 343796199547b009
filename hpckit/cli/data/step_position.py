"""Finds the position in the stream that a run had reached at a step, from its events or its
checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from data.order.batch_ramp import BatchRamp
from hpckit.cli.common.command_output import listing
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.cli.data.dataset_opening import only_state, position_of, states_in

if TYPE_CHECKING:
    from data.order.skipped_ranges import SkippedRanges
    from hpckit.cli.ckpt.store_location import StoreLocation
    from hpckit.events.schema import DatasetGrown, MixtureChanged
    from hpckit.report.history import TrainingAttempt


LeftOutOf: TypeAlias = "Callable[[Mapping[str, Any]], SkippedRanges]"


@dataclass(frozen=True)
class SkippedUpdate:
    """A step whose update was left out, with the positions of its samples."""

    step: int
    first: int
    end: int
    """The position after the last one."""


@dataclass(frozen=True)
class StepPosition:
    """The begin of a global step."""

    state: dict[str, Any]
    """The state of a loader of the same stream."""
    position: int
    batch: int | None
    """Number of samples of the step; None: not known."""
    step: int
    """Number of the step in its run, from 1."""
    later: int = 0
    """Number of steps from the position to the step, as the length of a step with packed documents
    is unknown."""
    seen: int = 0
    """Number of sequences of packed documents before the position."""
    skipped_updates: tuple[SkippedUpdate, ...] = ()
    """The steps of the run whose update was left out."""
    later_samples: int = 0
    """Number of samples from the position to the step, if the steps differ in size."""


@dataclass(frozen=True)
class SavedLoaderState:
    """The loader's state in a checkpoint after `step` finished steps."""

    step: int
    state: dict[str, Any]


def find_step_position(
    place: str,
    run: str | None,
    step: int | None,
    batch: int | None,
    left_out_of: LeftOutOf | None = None,
) -> StepPosition:
    """Find step `step` of a run; None: the one after its newest checkpoint.

    Args:
        place: a store, a run in it, or a run directory.
        batch: the global batch size that the user has given; None: it is determined here.
        left_out_of: returns all positions that the loader of a state leaves out, also in later
            epochs; None: `skipped_of`, without these.

    Raises CommandUsageError if it cannot be found; StoreError, DamagedError.
    """
    from hpckit.cli.ckpt.store_location import opened

    with opened(place, run) as at:
        name = at.only_run()
        saved = _saved(at, name, step)
        where = f"run {name} of {at.store.url}"
    if step is None:
        step = saved[0].step + 1
    lives, left_out, updates, changes, growths = _attempts_of(Path(place))
    state = _with_left_out(saved[0].state, left_out)
    if (change := unsaved_change(changes, _attempt_before(lives, step), state)) is not None:
        raise CommandUsageError(
            f"step {step}: from sample {change.position} on, the run has other weights of its "
            f"mixture than its checkpoint of step {saved[0].step}, and there is none after this "
            "step yet: try again after the next checkpoint"
        )
    if "pack" in state:
        found = replace(of_packed(lives, saved, step, batch), state=state)
    elif (begin := of_lives(lives, step)) is not None:
        position, size, later, samples = begin
        found = StepPosition(state, position, batch or size, step, later)
        if samples != later * (batch or size):  # those before were of other sizes
            found = replace(found, later=0, later_samples=samples)
    else:
        of_saved = of_checkpoints(saved, step, batch, left_out_of)
        if of_saved is None:
            steps = listing([str(one.step) for one in saved])
            raise CommandUsageError(
                f"step {step} of {where}: from its checkpoints at {steps} the number of samples of "
                "a step cannot be computed: give it with --global-batch"
            )
        found = of_saved
    if (growth := unsaved_growth(growths, _attempt_before(lives, step), state)) is not None:
        raise CommandUsageError(
            f"step {step}: the run has read {growth.after} shards since it resumed, and its "
            f"checkpoint of step {saved[0].step} is of {growth.before}; there is none after this "
            "step yet: try again after the next checkpoint"
        )
    return replace(found, skipped_updates=updates)


def unsaved_change(
    changes: Sequence[MixtureChanged], life: TrainingAttempt | None, state: Mapping[str, Any]
) -> MixtureChanged | None:
    """Return the change of a mixture's weights with which an attempt began, if a loader's state is
    of before; None: the state has all weights of the attempt.

    Args:
        changes: of the run.
    """
    begins = [segment[0] for segment in state.get("segments", ())]
    for change in changes:
        is_of_life = life is not None and (change.generation, change.attempt or 0) == (
            life.generation,
            life.attempt,
        )
        if is_of_life and change.reason == "resume" and change.position not in begins:
            return change
    return None


def unsaved_growth(
    growths: Sequence[DatasetGrown], life: TrainingAttempt | None, state: Mapping[str, Any]
) -> DatasetGrown | None:
    """Return the growth of the dataset with which an attempt began, if a loader's state is of
    before; None: the state has all versions of the attempt."""
    known = max([int(version[2]) for version in state.get("grown", ())], default=0)
    for growth in growths:
        is_of_life = life is not None and (growth.generation, growth.attempt or 0) == (
            life.generation,
            life.attempt,
        )
        if is_of_life and growth.after > max(known, int(state.get("shards", 0))):
            return growth
    return None


def of_lives(lives: Sequence[TrainingAttempt], step: int) -> tuple[int, int, int, int] | None:
    """Return the position of an attempt's first step, the batch of step `step`, and the number of
    steps and of samples from there to it; None if no attempt covers it.

    The last attempt that began before the step is used, as later attempts repeat steps of earlier
    ones. So what it has passed of what is left out was left out in it, whenever that was decided.
    """
    life = _attempt_before(lives, step)
    if life is None or life.position is None or life.global_batch is None:
        return None
    steps = step - 1 - life.start_step
    samples, batch = life.samples_after(steps)
    return life.position, batch, steps, samples


def of_packed(
    lives: Sequence[TrainingAttempt],
    saved: Sequence[SavedLoaderState],
    step: int,
    batch: int | None,
) -> StepPosition:
    """Find step `step` with packed documents, from the begin of its attempt or the checkpoint
    before it.

    Raises CommandUsageError if neither is known.
    """
    state, life = saved[0].state, _attempt_before(lives, step)
    if life is not None and life.position is not None:
        later = step - 1 - life.start_step
        full = life.batch_ramp[-1] if life.batch_ramp else life.global_batch
        return StepPosition(state, life.position, batch or full, step, later, seen=life.seen or 0)
    before = next((one for one in saved if one.step < step), None)
    if before is None:
        raise CommandUsageError(
            f"step {step}: no earlier checkpoint records where its documents begin"
        )
    seen, ramp = int(before.state.get("seen", 0)), before.state.get("batch_ramp")
    size = batch or (ramp[-1] if ramp else None)
    later = step - 1 - before.step
    return StepPosition(state, position_of(before.state), size, step, later, seen=seen)


def _attempt_before(lives: Sequence[TrainingAttempt], step: int) -> TrainingAttempt | None:
    return next((life for life in reversed(lives) if life.start_step < step), None)


def of_checkpoints(
    saved: Sequence[SavedLoaderState],
    step: int,
    batch: int | None,
    left_out_of: LeftOutOf | None = None,
) -> StepPosition | None:
    """Find step `step` from checkpoints, newest first; None if they do not determine it.
    `left_out_of` is as for `find_step_position`.

    The batch only changes when a run resumes, so it is constant between neighbouring checkpoints,
    unless some in between were removed: then the positions may not divide evenly. A resume may also
    change what comes after the earlier checkpoint: the weights of a mixture, the shards, or what is
    left out. The state of the later one has all of it, and what was before.
    """
    left_out_of = left_out_of or skipped_of
    before = next((one for one in saved if one.step < step), None)
    after = next((one for one in reversed(saved) if one.step >= step), None)
    base = before or after
    if base is None:
        return None
    state = (after or base).state
    left_out = left_out_of(state)
    if state.get("batch_ramp"):
        done, at = (0, 0) if before is None else (before.step, position_of(before.state))
        found = of_ramp(state, at, step - 1 - done, left_out_of)
        return StepPosition(state, *found, step)
    if batch is None and before and after:
        begin, end = (left_out.kept_before(position_of(one.state)) for one in (before, after))
        passed = end - begin
        if passed % (after.step - before.step):
            return None
        batch = passed // (after.step - before.step)
    steps = step - 1 - base.step
    if steps and batch is None:
        return None
    samples = steps * (batch or 0)
    if left_out.kept_before(position_of(base.state)) + samples < 0:
        return None
    position = left_out.later(position_of(base.state), samples)
    return StepPosition(state, position, batch, step)


def of_ramp(
    state: Mapping[str, Any], position: int, later: int, left_out_of: LeftOutOf
) -> tuple[int, int]:
    """Return (position, batch) of the step that comes `later` steps after the one at `position`, of
    a batch that grows as a loader's state says."""
    ramp, left_out = BatchRamp(*state["batch_ramp"]), left_out_of(state)
    seen = left_out.kept_before(position)
    after = ramp.after(seen, later)
    return left_out.later(position, after - seen), ramp.size_at(after)


def _saved(at: StoreLocation, run: str, step: int | None) -> list[SavedLoaderState]:
    """Return the loader states of the checkpoints next to a step, newest first.

    Raises CommandUsageError if there is none.
    """
    from checkpointing.store import catalog

    found, problems = catalog.committed(at.store, run)
    by_step = sorted(found, key=lambda one: -one.stored.save.step)
    if step is not None:
        later = [one for one in by_step if one.stored.save.step >= step]
        earlier = [one for one in by_step if one.stored.save.step < step]
        by_step = [*later[-1:], *earlier[:1]]
    else:
        by_step = by_step[:1]
    if not by_step:
        more = f", {len(problems)} are damaged" if problems else ""
        raise CommandUsageError(f"no checkpoint of run {run} in {at.store.url}{more}")
    return [SavedLoaderState(one.stored.save.step, _loader_state(one)) for one in by_step]


def _loader_state(found: Any) -> dict[str, Any]:
    """Return the loader's state in a checkpoint."""
    from checkpointing.format.values.json_values import decode, readable

    states: dict[str, dict[str, Any]] = {}
    for name, item in found.document.items.items():
        if item.tensors == 0:
            for path, value in found.document.table(name).values.items():
                # decode only these values, as others may be of classes that only the program has
                # declared
                found_in = states_in(readable(value), path)
                states.update((place, decode(state)) for place, state in found_in)
    return only_state(states, f"step {found.stored.save.step} ({found.stored.save.id})")


def skipped_of(state: Mapping[str, Any] | None) -> SkippedRanges:
    """Return the positions that the loader of a state leaves out. Raises CommandUsageError."""
    from data.order.skipped_ranges import SkippedRanges

    try:
        return SkippedRanges.of_state((state or {}).get("skipped", []))
    except ValueError as error:
        raise CommandUsageError(f"not a loader's state: {error}") from None


def _with_left_out(state: dict[str, Any], left_out: SkippedRanges) -> dict[str, Any]:
    """Return a loader's state that leaves out these positions, too, as a checkpoint may be older
    than a spike."""
    every = skipped_of(state)
    for first, end in left_out.ranges:
        every = every.with_range(first, end)
    return {**state, "skipped": every.to_state()} if every else state


def _attempts_of(
    folder: Path,
) -> tuple[
    Sequence[TrainingAttempt],
    SkippedRanges,
    tuple[SkippedUpdate, ...],
    tuple[MixtureChanged, ...],
    tuple[DatasetGrown, ...],
]:
    """Return the attempts of a run directory, what they leave out since spikes, the updates that
    they have left out, how they have changed a mixture, and how the dataset has grown; nothing for
    another folder."""
    from data.order.skipped_ranges import NOTHING_SKIPPED
    from hpckit.events.event_log import read_events
    from hpckit.report.history import build_history
    from hpckit.rundir.directory import RunDir

    events = RunDir(folder).events
    if not (folder / "submissions").is_dir() or not events.is_file():
        return (), NOTHING_SKIPPED, (), (), ()
    history = build_history(read_events(events))
    updates = tuple(
        SkippedUpdate(one.step, one.first_position, one.end_position)
        for one in history.skipped_updates
        if one.first_position is not None and one.end_position is not None
    )
    changes, growths = history.mixture_changes, history.dataset_growths
    return history.lives, history.left_out, updates, changes, growths
