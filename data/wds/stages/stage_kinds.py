"""What each stage of webdataset becomes here; see the table in `data.wds`."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import update_wrapper
from typing import Any, TypeAlias

import webdataset
from webdataset import filters, handlers
from webdataset.utils import PipelineStage

from data.errors import DataError

Stage: TypeAlias = Any
"""A callable from an iterable to an iterable, or webdataset's `PipelineStage`."""


class StageKind(Enum):
    """What a stage does to the samples that it is given."""

    EACH = "one for one, or none"
    FILTER = "some of them"
    BATCH = "batches"
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
}


_DRAWS_NOTHING = (
    filters._rename,
    filters._to_tuple,
    filters._extract_keys,
    filters._rename_keys,
    filters._info,
    filters._log_keys,
    filters._rsample,  # which is made one of positions
)


class per_sample:  # noqa: N801 (stages of webdataset have such names)
    """Says of a stage of one's own, a generator over samples, that it gives one for one or none.

    It must not look ahead, and must remember nothing that changes what it gives.
    """

    def __init__(self, stage: Callable[[Iterable[Any]], Iterable[Any]]) -> None:
        self.stage = stage
        update_wrapper(self, stage)

    def __call__(self, source: Iterable[Any]) -> Iterable[Any]:
        return self.stage(source)


def kind_of(stage: Stage) -> StageKind:
    """The kind; MANY for what is not known. Raises DataError for what is no stage."""
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
    raise DataError(f"{stage!r} is no stage: expected a callable from an iterable to an iterable")


def may_draw(stage: Stage) -> bool:
    """Whether it may ask the generators of random, numpy or torch for numbers."""
    if not isinstance(stage, filters.FilterFunction):
        return True
    if stage.f is filters._decode:
        own = any(not isinstance(each, str) for each in stage.args)
        return own or not stage.kw.keys() <= {"handler", "only", "partial"}
    return stage.f not in _DRAWS_NOTHING


def arguments(stage: Stage) -> dict[str, Any]:
    """What a stage of webdataset was given, defaults included, by name."""
    bound = inspect.signature(stage.f).bind(None, *stage.args, **stage.kw)
    bound.apply_defaults()
    return dict(bound.arguments)


def describe_stage(stage: Stage) -> str:
    """A stage as people know it."""
    function = getattr(stage, "f", None) or getattr(stage, "stage", None) or stage
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{str(name).removeprefix('_')}()"


def invoke(stage: Stage, source: Iterator[Any]) -> Iterator[Any]:
    """The stage at work."""
    return iter(stage.run(source) if isinstance(stage, PipelineStage) else stage(source))


def check_handler(handler: Any) -> None:
    """Raises DataError for one that would end the epoch without an error."""
    if handler in (handlers.ignore_and_stop, handlers.warn_and_stop):
        raise DataError(
            f"handler={handler.__name__} ends the epoch early without an error; take"
            ' ignore_and_continue, or none and errors="skip" or "raise"'
        )


def goes_on(handler: Any) -> bool:
    """Whether it is one of webdataset's that leave out what fails."""
    return handler in (handlers.ignore_and_continue, handlers.warn_and_continue)
