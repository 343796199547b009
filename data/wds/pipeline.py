"""A running pipeline in one process: its stream is opened, items are made step by step, and the
time of reads, stages and the consumer is measured."""

import logging
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from data.errors import DataError
from data.read.loader_metrics import LoaderMeter, Usage
from data.read.sample_stream import SampleStream, store_counts
from data.wds import pipeline_cursor, ranks_and_workers
from data.wds.pass_steps import PassSteps
from data.wds.pipeline_cursor import Cursor, PipelineState
from data.wds.pipeline_settings import PipelineSettings
from data.wds.pipeline_source import ShareRead, ShareReader, after_fork
from data.wds.stages.sample_seeds import Seeder
from data.wds.stages.stage_plan import inexact_stages
from data.wds.stages.stage_runner import (
    EMPTY,
    InexactRunner,
    PipelineItem,
    StageErrorPolicy,
    StageRunner,
)

_log = logging.getLogger(__name__)


class MeteredPass:
    """The meter of one pass. A consumer that asks for an item waits for its bytes, then for the
    stages, in one thread."""

    def __init__(self, meter: LoaderMeter) -> None:
        self._meter = meter
        self._waited_s = 0.0  # for bytes

    def reads(self, reads: Iterator[ShareRead]) -> Iterator[ShareRead]:
        """Yield the reads, and count the time waited for them."""
        while True:
            began_s = time.perf_counter()
            read = next(reads, None)
            self._waited_s += time.perf_counter() - began_s
            if read is None:
                return
            self._meter.read(read.batch, read.times)
            yield read

    def made(
        self, made: Generator[PipelineItem, None, None]
    ) -> Generator[PipelineItem, None, None]:
        """Yield the items made of `reads`, and count the rest of the time as work of the stages."""
        last_s = time.perf_counter()
        try:
            while True:
                began_s, bytes_s = time.perf_counter(), self._waited_s
                one = next(made, None)
                now_s = time.perf_counter()
                wait_s = now_s - began_s
                self._meter.waited(
                    wait_s=wait_s,
                    elapsed_s=now_s - last_s,
                    transform_s=max(0.0, wait_s - (self._waited_s - bytes_s)),
                )
                last_s = now_s
                if one is None:
                    return
                yield one
        finally:
            made.close()


class WdsPipeline:
    """The pipeline of `settings`, on the stream that the state `saved` belongs to. It holds no
    position.

    The stream is taken over from `like`, a pipeline of the same origin, if that has opened it.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        saved: PipelineState | None = None,
        like: "WdsPipeline | None" = None,
    ) -> None:
        self.settings = settings
        self._saved_state = saved
        self._opened: SampleStream | None = None if like is None else like._opened
        self._pid: int = 0 if like is None else like._pid
        self._stream: SampleStream | None = None
        self._meter = LoaderMeter()
        options = settings.options
        self._read_policy = options.budget(options.read_errors or options.errors or "raise")
        raised = options.budget(options.errors or "raise")
        handled = raised if options.errors else options.budget("skip")
        self._policy = StageErrorPolicy(raised, handled)

    @property
    def errors(self) -> int:
        """Samples that were left out or replaced, in this process."""
        kinds = (self._read_policy, self._policy.raised, self._policy.handled)
        return sum({id(kind): kind.count for kind in kinds}.values())

    @property
    def usage(self) -> Usage:
        """The time spent so far, by kind, in this process."""
        if self._stream is None:
            return Usage()
        usage = self._meter.usage(ready=0, counts=store_counts(self._stream))
        return replace(usage, errors=self.errors)

    @property
    def steps(self) -> PassSteps:
        """The steps of the pipeline. Raises DataError for invalid settings."""
        return self.settings.steps(self.open())

    def open(self) -> SampleStream:
        """Return the stream. Raises FingerprintError if the state belongs to another one;
        DataError."""
        if self._opened is None:
            self._opened = self.settings.origin.open()
        elif self._pid != os.getpid():
            self._opened, self._stream = after_fork(self._opened), None
        self._pid = os.getpid()
        if self._stream is None:
            self._stream = self._resumed(self._opened)
        return self._stream

    def state(self, at: Cursor, worker: tuple[int, int] | None = None) -> dict[str, Any]:
        """Return the state at the cursor `at`; `worker` is (number, count) for the state of one
        worker."""
        steps = self.steps
        return pipeline_cursor.write(
            self.open().identity, at, (steps.size, steps.ranks.world), worker
        )

    def pass_from(self, at: Cursor) -> Cursor:
        """Return the cursor of the pass at `at`, with its end in `until`."""
        steps = self.steps
        position = steps.advance(at.position, at.skip)
        until = steps.until(position) if at.until is None else at.until
        return Cursor(position, 0, at.within, until)

    def items_between(self, begin: int, end: int) -> int:
        """Return how many items this rank gets of the steps from one position to another, if all
        samples can be used. Raises DataError for invalid settings."""
        rank, world = self.steps.ranks
        return sum(
            count
            * self.settings.plan.items(
                (rank + 1) * size // world - rank * size // world, size // world
            )
            for size, count in self.steps.sizes(begin, end)
        )

    def made(self, at: Cursor, offset: int = 0, stride: int = 1) -> Iterator[PipelineItem]:
        """Yield the items of every `stride`-th step of a pass, from its step number `offset` on."""
        options, steps = self.settings.options, self.steps
        stream = self.open()
        reader = ShareReader(
            stream,
            steps,
            self._read_policy,
            options.prefetch,
            options.threads,
            options.downloads,
        )
        within = at.within if offset == 0 else 0
        reads = reader.read(at._replace(skip=at.skip + offset), stride)
        metered = MeteredPass(self._meter)
        try:
            made = metered.made(self._made(reader, metered.reads(reads), at, within))
            yield from _noticed(made)
        finally:
            reads.close()

    def _made(
        self, reader: ShareReader, reads: Iterator[ShareRead], at: Cursor, within: int
    ) -> Generator[PipelineItem, None, None]:
        settings, seed = self.settings, reader.stream.seed
        if not settings.options.exact:
            stages = inexact_stages(settings.stages)
            yield from InexactRunner(stages).make(reads, at)
            return
        plan, is_ours = settings.plan, ranks_and_workers.worker() is not None
        # in a worker, torch's loader may then collate, with the user's collate_fn
        seeds = settings.options.seeded and (is_ours or plan.may_draw)
        seeder = Seeder(seed, restore=not is_ours) if seeds else None
        runner = StageRunner(plan, reader, seeder, seed, self._policy)
        for read in reads:
            yield from runner.make(read, within)
            within = 0

    def check_empty(self, made: PipelineItem) -> None:
        """Check a step of which nothing was left. Raises DataError if it would put ranks out of
        step."""
        at = made.cursor
        if made.for_all_ranks:
            return
        if self.settings.options.exact and self.settings.ranks.world > 1:
            raise DataError(
                f"nothing is left for this rank of the step before position {at.position}, and the "
                "other ranks would continue without it: use larger batches, or filter when writing"
            )

    def _resumed(self, stream: SampleStream) -> SampleStream:
        saved, stream = self._saved_state, self.settings.sliced(stream)
        if saved is None:
            return stream
        found = stream.resumed(saved.identity, saved.cursor.position)
        if found.versions:
            raise DataError(
                "the dataset has grown since the run of this state began, and epochs differ in "
                "length, which only a Loader can follow"
            )
        steps = self.settings.steps(found)
        if saved.cursor.within and saved.layout != [steps.size, steps.ranks.world]:
            raise DataError(
                f"the state was taken inside a step, with [global batch, ranks] {saved.layout},"
                f" but here they are {[steps.size, steps.ranks.world]}: resume with the saved "
                "ones, or save at the end of a step"
            )
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for another process, which opens it again. Raises DataError if that is
        impossible."""
        settings = self.settings
        origin = settings.origin
        if origin.is_open:
            raise DataError(
                "an open dataset cannot be sent to another process: give its shards to "
                "StreamingDataset, or fork the workers"
            )
        options = settings.options
        if self._opened is not None:
            origin = origin.opened_as(self._opened)
            options = origin.options
        rank, world = settings.ranks
        options = replace(options, rank=rank, world_size=world)
        sent = replace(settings, origin=origin, options=options)
        return {**self.__dict__, "settings": sent, "_opened": None, "_stream": None}


def _noticed(made: Generator[PipelineItem, None, None]) -> Generator[PipelineItem, None, None]:
    """Yield the items of a pass, and warn at its end if nothing was left of any of them."""
    has_any = False
    for one in made:
        has_any = True
        yield one
        if one.item is not EMPTY:
            yield from made
            return
    if has_any:
        _log.warning(
            "a pass has ended without an item, as select(), select_files or another stage left out "
            "all of its samples"
        )
