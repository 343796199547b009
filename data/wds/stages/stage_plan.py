"""The plan of a pipeline's stages: those applied to samples, the batching, and those applied to
batches."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from webdataset import filters

from data.errors import DataError
from data.wds.stages.stage_chain import StageChain
from data.wds.stages.stage_kinds import (
    Stage,
    StageKind,
    arguments,
    describe_stage,
    kind_of,
    may_draw,
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
class StagePlan:
    """The stages of an exact pipeline."""

    samples: list[Stage] = field(default_factory=list)
    batching: Batching | None = None
    batches: list[Stage] = field(default_factory=list)
    """Stages that are applied to each batch."""
    filters: bool = False
    """Whether some stages leave samples out by their nature."""

    @property
    def may_draw(self) -> bool:
        """Whether any stage or collate may use the generators of random, numpy or torch."""
        collate = None if self.batching is None else self.batching.collate
        own = collate not in (None, filters.default_collation_fn)
        return own or any(may_draw(stage) for stage in (*self.samples, *self.batches))


def plan_of(stages: Sequence[Stage]) -> StagePlan:
    """Sort stages into a plan. Raises DataError for a stage that an exact pipeline does not
    allow."""
    samples: list[Stage] = []
    batches: list[Stage] = []
    batching: Batching | None = None
    leaves_out = False
    for stage in stages:
        kind = kind_of(stage)
        if kind is StageKind.NOTHING:
            note(
                f"{describe_stage(stage)} has no effect here: the order is already shuffled, see "
                "`window`"
            )
            continue
        if kind is StageKind.CACHE:
            raise DataError(
                f"{describe_stage(stage)} reorders decoded samples by their time of arrival; leave "
                "it out"
            )
        if kind is StageKind.MANY:
            raise _many(stage)
        if kind is StageKind.BATCH:
            if batching is not None:
                raise DataError(
                    "a second batched() is not allowed in an exact pipeline: leave it out"
                )
            batching = _batching(stage)
            continue
        leaves_out = leaves_out or kind is StageKind.FILTER
        (samples if batching is None else batches).append(stage)
    StageChain([*samples, *batches])  # raises if a handler is not allowed
    return StagePlan(samples, batching, batches, leaves_out)


def inexact_stages(stages: Sequence[Stage]) -> list[Stage]:
    """Return all stages but shuffles of samples in stream order, which are shuffled already."""
    known = 0
    while known < len(stages) and kind_of(stages[known]) not in (StageKind.MANY, StageKind.CACHE):
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
        raise DataError(f"batched({size!r}): expected a whole number of samples, at least 1")
    return Batching(size, given["collation_fn"], bool(given["partial"]))


def _many(stage: Stage) -> DataError:
    return DataError(
        f"{describe_stage(stage)} may return any number of samples for one, so no position would "
        "be exact: mark it `per_sample` if it returns at most one for each; or use exact=False, "
        "where the state"
        " counts the samples that went into the stages"
    )
