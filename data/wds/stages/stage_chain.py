"""Stages at work on one sample at a time, so that each result and error has its position."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from webdataset import filters

from data.errors import DataError
from data.wds.stages.stage_kinds import Stage, check_handler, describe_stage, invoke

DROPPED = object()
"""What becomes of a sample that a stage leaves out."""


class HandledError(Exception):
    """The handler of a stage saw an error, which is the cause, and bears it."""


class StoppedError(Exception):
    """The handler of a stage saw an error, which is the cause, and does not bear it."""


class StageChain:
    """Stages that give one for one or none. They are built once and fed sample by sample: what
    they do when they begin is done once, and again only after a sample that was left out."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._feed = _Feed()
        self._caught = _Caught()
        self._stages = [self._caught.watched(stage) for stage in stages]
        self._names = ", ".join(describe_stage(stage) for stage in stages)
        self._out: Iterator[Any] | None = None

    def run(self, sample: Any) -> Any:
        """What becomes of a sample: DROPPED if it is left out.

        Raises HandledError and StoppedError; DataError for stages that give more than one; else
        what the stages raise.
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
            raise DataError(
                f"the stages {self._names} gave more than one for a sample: they are not"
                " `per_sample`; take exact=False"
            )
        if found is DROPPED and self._caught.error is not None:
            raise self._caught.verdict() from self._caught.error
        return found

    @property
    def caught(self) -> Exception | None:
        """What a handler saw last."""
        return self._caught.error

    def watched(self, stage: Stage) -> Stage:
        """A stage of no chain, whose handler this one hears of."""
        return self._caught.watched(stage)

    def _built(self) -> Iterator[Any]:
        if self._out is None:
            source: Iterator[Any] = self._feed
            for stage in self._stages:
                source = invoke(stage, source)
            self._out = source
        return self._out


class _Feed(Iterator[Any]):
    """At most one sample; who asks for a second one finds the end."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def __next__(self) -> Any:
        if not self.waiting:
            raise StopIteration
        return self.waiting.pop()


class _Caught:
    """What the handlers of the stages see."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._goes_on = True

    def verdict(self) -> Exception:
        return HandledError() if self._goes_on else StoppedError()

    def watched(self, stage: Stage) -> Stage:
        """The stage with its handler under watch, if it has one of its own."""
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
            self.error, self._goes_on = error, True
            verdict = handler(error)
            self._goes_on = bool(verdict)
            return verdict

        return watched
