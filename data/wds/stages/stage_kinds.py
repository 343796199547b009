"""How each stage of webdataset is run here; see the table in docs/tasks/webdataset.md."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import update_wrapper
from typing import Any, TypeAlias

import webdataset
from webdataset import filters, handlers
from webdataset.utils import PipelineStage

from data.errors import PipelineError

Stage: TypeAlias = Any
"""A callable from an iterable to an iterable, or webdataset's `PipelineStage`."""


class StageKind(Enum):
    """The kind of a stage: what it does to the samples that it is given."""

    EACH = "one for one, or none"
    FILTER = "some of them"
    BATCH = "batches"
    SPLIT = "the samples of batches"
    SLICE = "some of them, by their number"
    NOTHING = "another order"
    MANY = "any number"
    CACHE = "those of before"


_EACH = (
    filters._decode,
    filters._map,
    filters._rename,
    filters._associate,
    filters._map_dict,
    filters._to_tuple,
    filters._map_tuple,
    filters._extract_keys,
    filters._rename_keys,
    filters._xdecode,
    filters._info,
    filters._log_keys,
)
_KINDS: dict[Any, StageKind] = dict.fromkeys(_EACH, StageKind.EACH) | {
    filters._select: StageKind.FILTER,
    filters._rsample: StageKind.FILTER,
    filters._batched: StageKind.BATCH,
    filters._shuffle: StageKind.NOTHING,
    filters._unbatched: StageKind.SPLIT,
    filters._unlisted: StageKind.SPLIT,
    itertools.islice: StageKind.SLICE,
}
_NAMES: dict[Any, str] = {itertools.islice: "slice"}


_DRAWS_NOTHING = (
    filters._rename,
    filters._to_tuple,
    filters._extract_keys,
    filters._rename_keys,
    filters._info,
    filters._log_keys,
    filters._rsample,  # which is replaced by a choice by position
)


class per_sample:  # noqa: N801 (stages of webdataset have such names)
    """Declares that a stage of your own, a generator over samples, returns one item for each or
    none.

    It must not look ahead, and must keep no state that changes its results.
    """

    def __init__(self, stage: Callable[[Iterable[Any]], Iterable[Any]]) -> None:
        self.stage = stage
        update_wrapper(self, stage)

    def __call__(self, source: Iterable[Any]) -> Iterable[Any]:
        return self.stage(source)


def kind_of(stage: Stage) -> StageKind:
    """Return the kind; MANY for unknown stages. Raises PipelineError if it is not a stage."""
    if isinstance(stage, per_sample):
        return StageKind.EACH
    if isinstance(stage, filters.FilterFunction):
        return _KINDS.get(stage.f, StageKind.MANY)
    if isinstance(stage, webdataset.detshuffle):
        return StageKind.NOTHING
    if isinstance(stage, webdataset.Cached | webdataset.LMDBCached):
        return StageKind.CACHE
    if isinstance(stage, PipelineStage) or callable(stage):
        return StageKind.MANY
    raise PipelineError(
        f"{stage!r} is not a stage: expected a callable from an iterable to an iterable"
    )


def may_draw(stage: Stage) -> bool:
    """Return whether the stage may use the generators of random, numpy or torch."""
    if not isinstance(stage, filters.FilterFunction):
        return True
    if stage.f is filters._decode:
        own = any(not isinstance(each, str) for each in stage.args)
        return own or not stage.kw.keys() <= {"handler", "only", "partial"}
    return stage.f not in _DRAWS_NOTHING


def arguments(stage: Stage) -> dict[str, Any]:
    """Return the arguments of a stage of webdataset, defaults included, by name."""
    bound = inspect.signature(stage.f).bind(None, *stage.args, **stage.kw)
    bound.apply_defaults()
    return dict(bound.arguments)


def slice_arguments(stage: Stage) -> tuple[int, int | None, int]:
    """Return (start, stop, step) of a `slice`. Raises PipelineError for what is no slice of an
    iterator."""
    given = slice(*stage.args) if 1 <= len(stage.args) <= 3 and not stage.kw else None
    values = [] if given is None else [given.start or 0, given.stop, given.step or 1]
    wrong = [v for v in values if v is not None and (type(v) is not int or v < 0)]
    if not values or wrong:
        text = ", ".join(map(repr, stage.args))
        raise PipelineError(f"slice({text}): expected (stop) or (start, stop[, step]), from 0 on")
    start, stop, step = values
    return start, stop, step


def describe_stage(stage: Stage) -> str:
    """Return the name of a stage in messages."""
    function = getattr(stage, "f", None) or getattr(stage, "stage", None) or stage
    name = _NAMES.get(function) if inspect.isclass(function) else None
    name = name or getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{str(name).removeprefix('_')}()"


def invoke(stage: Stage, source: Iterator[Any]) -> Iterator[Any]:
    """Return the iterator of the stage over `source`."""
    return iter(stage.run(source) if isinstance(stage, PipelineStage) else stage(source))


def check_handler(handler: Any) -> None:
    """Raise PipelineError for a handler that would end the epoch without an error."""
    if handler in (handlers.ignore_and_stop, handlers.warn_and_stop):
        raise PipelineError(
            f"handler={handler.__name__} ends the epoch early without an error; use"
            ' ignore_and_continue, or no handler and errors="skip" or "raise"'
        )


def skips_errors(handler: Any) -> bool:
    """Return whether the handler is one of webdataset's that skip what fails."""
    return handler in (handlers.ignore_and_continue, handlers.warn_and_continue)
