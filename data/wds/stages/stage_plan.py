"""The plan of a pipeline's stages: those applied to samples, the batching, and those applied to
batches."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from webdataset import filters

from data.errors import PipelineError
from data.wds.stages.stage_chain import StageChain
from data.wds.stages.stage_kinds import (
    Stage,
    StageKind,
    arguments,
    describe_stage,
    kind_of,
    may_draw,
    slice_arguments,
)

_log = logging.getLogger(__name__)
_noted: set[str] = set()


@dataclass(frozen=True)
class Batching:
    """The arguments of `batched`."""

    size: int
    collate: Callable[[list[Any]], Any] | None
    partial: bool


@dataclass(frozen=True)
class StageGroup:
    """Stages that are applied to samples one by one, and what happens to these then: they are
    delivered, or batched; and the batches are delivered, or split into samples for the next
    group."""

    samples: list[Stage] = field(default_factory=list)
    batching: Batching | None = None
    batches: list[Stage] = field(default_factory=list)
    """Stages that are applied to each batch."""
    split: Stage | None = None
    """The stage that makes samples of each batch again."""

    @property
    def stages(self) -> list[Stage]:
        """All stages that may be the user's, without the batching."""
        return [*self.samples, *self.batches]


class PlannedSlice(NamedTuple):
    """The arguments of a `slice`, and whether it counts batches or samples."""

    start: int
    stop: int | None
    step: int
    of_batches: bool


@dataclass(frozen=True)
class StagePlan:
    """The stages of an exact pipeline."""

    groups: tuple[StageGroup, ...] = (StageGroup(),)
    filters: bool = False
    """Whether some stages leave samples out by their nature."""
    slices: tuple[PlannedSlice, ...] = ()
    """The slices of each epoch, which choose samples before they are read."""
    of_datasets: tuple[list[Stage], ...] = ()
    """The stages that are applied only to the samples of each dataset of a mixture, first."""

    @property
    def batching(self) -> Batching | None:
        """The batching of the items that are delivered; None if they are samples."""
        return self.groups[-1].batching

    @property
    def size(self) -> int:
        """The least number of samples that are whole batches of each batching."""
        return math.lcm(*(group.batching.size for group in self.groups if group.batching))

    def items(self, rows: int, least: int) -> int:
        """Return how many items a rank's `rows` of a step give; `least` are those of the rank that
        has fewest."""
        single = len(self.groups) == 1
        for group in self.groups:
            if (batching := group.batching) is None:
                return rows
            ends = batch_ends(rows, least, batching.size, batching.partial or single)
            if group.split is None:
                return len(ends)
            rows = ends[-1] if ends else 0
            least = min(least, rows)
        return rows

    @property
    def may_draw(self) -> bool:
        """Whether any stage or collate may use the generators of random, numpy or torch."""
        batchings = [group.batching for group in self.groups if group.batching]
        own = any(each.collate not in (None, filters.default_collation_fn) for each in batchings)
        stages = [*self.groups, *map(StageGroup, self.of_datasets)]
        return own or any(may_draw(stage) for group in stages for stage in group.stages)


def plan_of(stages: Sequence[Stage], of_datasets: Sequence[Sequence[Stage]] = ()) -> StagePlan:
    """Sort stages into a plan, after those of each dataset of a mixture. Raises PipelineError for a
    stage that an exact pipeline does not allow."""
    building = _PlanBuilder()
    for stage in stages:
        building.add(stage)
    plan = building.plan()
    own = [plan_of(of_dataset) for of_dataset in of_datasets]
    for each in own:
        if len(each.groups) > 1 or each.groups[0].batching is not None or each.slices:
            raise PipelineError(
                "a dataset of a mixture has batched() or slice() of its own, so that no position of"
                " the mixture would be exact: use them after the mixture, or exact=False"
            )
    leaves_out = plan.filters or any(each.filters for each in own)
    first = tuple(each.groups[0].samples for each in own)
    return replace(plan, of_datasets=first, filters=leaves_out)


class _PlanBuilder:
    """The plan of the stages so far."""

    def __init__(self) -> None:
        self._groups = [StageGroup()]
        self._slices: list[PlannedSlice] = []
        self._filters: list[Stage] = []

    def plan(self) -> StagePlan:
        for group in self._groups:
            StageChain(group.stages)  # raises if a handler is not allowed
        return StagePlan(tuple(self._groups), bool(self._filters), tuple(self._slices))

    def add(self, stage: Stage) -> None:
        kind, group = kind_of(stage), self._groups[-1]
        if kind is StageKind.NOTHING:
            note(
                f"{describe_stage(stage)} has no effect here: the order is already shuffled, see "
                "`window`"
            )
        elif kind is StageKind.CACHE:
            raise PipelineError(
                f"{describe_stage(stage)} reorders decoded samples by their time of arrival; leave "
                "it out"
            )
        elif kind is StageKind.MANY:
            raise _many(stage)
        elif kind is StageKind.BATCH:
            if group.batching is not None:
                raise PipelineError(
                    "a second batched() is not allowed in an exact pipeline, unless unbatched() is "
                    "between them: leave it out"
                )
            self._groups[-1] = replace(group, batching=_batching(stage))
        elif kind is StageKind.SPLIT:
            if group.batching is None:
                raise _many(stage)
            self._groups[-1] = replace(group, split=stage)
            self._groups.append(StageGroup())
        elif kind is StageKind.SLICE:
            self._slices.append(self._slice(stage))
        else:
            if kind is StageKind.FILTER:
                self._filters.append(stage)
            (group.samples if group.batching is None else group.batches).append(stage)

    def _slice(self, stage: Stage) -> PlannedSlice:
        group = self._groups[-1]
        if len(self._groups) > 1:
            raise PipelineError(
                "slice() after unbatched() would cut a batch, so its position would not be exact: "
                "put it before batched(), or use exact=False"
            )
        if self._filters and group.batching is None:
            raise PipelineError(
                f"slice() after {describe_stage(self._filters[-1])} counts what that keeps, which "
                "no position tells: put it before, or after batched(), or use exact=False"
            )
        start, stop, step = slice_arguments(stage)
        return PlannedSlice(start, stop, step, group.batching is not None)


def batch_ends(rows: int, least: int, size: int, partial: bool) -> list[int]:
    """Return where the batches of `size` end in a rank's rows of a step.

    Their number follows from `least`, the rows of the rank that has fewest, so that it is the same
    on every rank; the last batch takes the rest, which is at most one row more. A last batch that
    is not whole is left out unless `partial`.
    """
    count = -(-least // size) if partial else least // size
    ends = [size * number for number in range(1, count + 1)]
    return [*ends[:-1], rows] if partial and ends else ends


def inexact_stages(stages: Sequence[Stage]) -> list[Stage]:
    """Return all stages but shuffles of samples in stream order, which are shuffled already."""
    other = (StageKind.MANY, StageKind.CACHE, StageKind.SPLIT, StageKind.SLICE)
    known = 0
    while known < len(stages) and kind_of(stages[known]) not in other:
        known += 1
    begin = [stage for stage in stages[:known] if kind_of(stage) is not StageKind.NOTHING]
    return [*begin, *stages[known:]]


def note(text: str) -> None:
    """Log a line, once in a process."""
    if text not in _noted:
        _noted.add(text)
        _log.info("%s", text)


def is_rsample(stage: Stage) -> bool:
    """Return whether the stage is webdataset's `rsample`, which chooses at random."""
    return isinstance(stage, filters.FilterFunction) and stage.f is filters._rsample


def _batching(stage: Stage) -> Batching:
    given = arguments(stage)
    size = given["batchsize"]
    if type(size) is not int or size < 1:
        raise PipelineError(f"batched({size!r}): expected a whole number of samples, at least 1")
    return Batching(size, given["collation_fn"], bool(given["partial"]))


def _many(stage: Stage) -> PipelineError:
    return PipelineError(
        f"{describe_stage(stage)} may return any number of samples for one, so no position would "
        "be exact: mark it `per_sample` if it returns at most one for each; or use exact=False, "
        "where the state"
        " counts the samples that went into the stages"
    )
