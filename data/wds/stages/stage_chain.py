"""Stages that process one sample at a time, so that each result and error has its position."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from webdataset import filters

from data.errors import PipelineError
from data.wds.stages.stage_kinds import Stage, check_handler, describe_stage, invoke

DROPPED = object()
"""The result of a sample that a stage leaves out."""


class HandledError(Exception):
    """The handler of a stage accepted an error, which is the cause."""


class StoppedError(Exception):
    """The handler of a stage did not accept an error, which is the cause."""


class StageChain:
    """A chain of stages that return one item for each, or none. They are built once and fed sample
    by sample: their initialization runs once, and again only after a sample that was left out."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._feed = _SampleFeed()
        self._caught = _HandlerErrors()
        self._stages = [self._caught.watched(stage) for stage in stages]
        self._names = ", ".join(describe_stage(stage) for stage in stages)
        self._out: Iterator[Any] | None = None

    def run(self, sample: Any) -> Any:
        """Return the result of a sample: DROPPED if it is left out.

        Raises HandledError and StoppedError; PipelineError for stages that return more than one
        item; else what the stages raise.
        """
        if not self._stages:
            return sample
        self._feed.waiting, self._caught.error = [sample], None
        try:
            found = next(self._built())
        except StopIteration:  # it asked for another sample
            self._out = None
            found = DROPPED
        except BaseException:
            self._out = None
            raise
        if self._feed.waiting:
            raise PipelineError(
                f"the stages {self._names} returned more than one for a sample, so they are not "
                "`per_sample`; use exact=False"
            )
        if found is DROPPED and self._caught.error is not None:
            raise self._caught.verdict() from self._caught.error
        return found

    @property
    def caught(self) -> Exception | None:
        """The error that a handler saw last."""
        return self._caught.error

    def watched(self, stage: Stage) -> Stage:
        """Return a stage outside of the chain such that this chain sees the errors of its
        handler."""
        return self._caught.watched(stage)

    def _built(self) -> Iterator[Any]:
        if self._out is None:
            source: Iterator[Any] = self._feed
            for stage in self._stages:
                source = invoke(stage, source)
            self._out = source
        return self._out


class _SampleFeed(Iterator[Any]):
    """An iterator over at most one sample; a request for a second one finds the end."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def __next__(self) -> Any:
        if not self.waiting:
            raise StopIteration
        return self.waiting.pop()


class _HandlerErrors:
    """The errors that the handlers of the stages see."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._is_accepted = True

    def verdict(self) -> Exception:
        return HandledError() if self._is_accepted else StoppedError()

    def watched(self, stage: Stage) -> Stage:
        """Return the stage with its handler observed, if it has one."""
        if not isinstance(stage, filters.FilterFunction) or not inspect.isfunction(stage.f):
            return stage
        bound = inspect.signature(stage.f).bind(None, *stage.args, **stage.kw)
        handler = bound.arguments.get("handler")
        if handler is None:
            return stage
        check_handler(handler)
        bound.arguments["handler"] = self._watch(handler)
        return filters.FilterFunction(stage.f, *bound.args[1:], **bound.kwargs)

    def _watch(self, handler: Callable[[Exception], Any]) -> Callable[[Exception], Any]:
        def watched(error: Exception) -> Any:
            self.error, self._is_accepted = error, True
            verdict = handler(error)
            self._is_accepted = bool(verdict)
            return verdict

        return watched
