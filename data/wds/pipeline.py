"""A pipeline at work in one process: opened, and made into items step by step."""

import os
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from data.errors import DataError
from data.reader.metrics import Meter, Usage
from data.reader.stream import Stream, store_counts
from data.wds import cursor, topology
from data.wds.cursor import Cursor, Told
from data.wds.metering import Metered
from data.wds.plan import inexact_stages
from data.wds.runner import InexactRunner, Made, Policy, Runner
from data.wds.seeding import Seeder
from data.wds.settings import Settings
from data.wds.source import Read, Reader, after_fork
from data.wds.steps import Steps


class Pipeline:
    """What `settings` say, of the stream that `told` is a state of; holds no position.

    What `like` opened, a pipeline of the same origin, need not be opened again.
    """

    def __init__(
        self, settings: Settings, told: Told | None = None, like: "Pipeline | None" = None
    ) -> None:
        self.settings = settings
        self._told = told
        self._opened: Stream | None = None if like is None else like._opened
        self._pid: int = 0 if like is None else like._pid
        self._stream: Stream | None = None
        self._meter = Meter()
        self._reading = settings.faults(settings.read_errors)
        raised = settings.faults(settings.errors or "raise")
        handled = raised if settings.errors else settings.faults("skip")
        self._policy = Policy(raised, handled)

    @property
    def errors(self) -> int:
        """Samples that were left out or replaced, in this process."""
        kinds = (self._reading, self._policy.raised, self._policy.handled)
        return sum({id(kind): kind.count for kind in kinds}.values())

    @property
    def usage(self) -> Usage:
        """Where the time has gone so far, in this process."""
        if self._stream is None:
            return Usage()
        usage = self._meter.usage(ready=0, counts=store_counts(self._stream))
        return replace(usage, errors=self.errors)

    @property
    def steps(self) -> Steps:
        """As things stand. Raises DataError for what cannot be."""
        return self.settings.steps(self.open())

    def open(self) -> Stream:
        """The stream. Raises FingerprintError if the state is of another one; DataError."""
        if self._opened is None:
            self._opened = self.settings.origin.open()
        elif self._pid != os.getpid():
            self._opened, self._stream = after_fork(self._opened), None
        self._pid = os.getpid()
        if self._stream is None:
            self._stream = self._resumed(self._opened)
        return self._stream

    def state(self, at: Cursor, worker: tuple[int, int] | None = None) -> dict[str, Any]:
        """That of one that stands at `at`; `worker` is (number, count) if it is one alone."""
        steps = self.steps
        return cursor.write(self.open().identity, at, (steps.size, steps.ranks.world), worker)

    def pass_from(self, at: Cursor) -> Cursor:
        """The pass that is at `at`, whose `until` is known then."""
        steps = self.steps
        position = steps.advance(at.position, at.skip)
        until = steps.until(position) if at.until is None else at.until
        return Cursor(position, 0, at.within, until)

    def made(self, at: Cursor, offset: int = 0, stride: int = 1) -> Iterator[Made]:
        """Of every `stride`-th step of a pass from its step number `offset` on, what to deliver."""
        settings, steps = self.settings, self.steps
        stream = self.open()
        reader = Reader(
            stream, steps, self._reading, settings.prefetch, settings.threads, settings.downloads
        )
        within = at.within if offset == 0 else 0
        reads = reader.read(at._replace(skip=at.skip + offset), stride)
        metered = Metered(self._meter)
        try:
            yield from metered.made(self._made(reader, metered.reads(reads), at, within))
        finally:
            reads.close()

    def _made(
        self, reader: Reader, reads: Iterator[Read], at: Cursor, within: int
    ) -> Generator[Made, None, None]:
        settings, seed = self.settings, reader.stream.seed
        if not settings.exact:
            stages = inexact_stages(settings.stages)
            yield from InexactRunner(stages).make(reads, at)
            return
        plan, is_ours = settings.plan, topology.worker() is not None
        # in a worker, torch's loader may collate after it, by what the user has given it
        seeds = settings.seeded and (is_ours or plan.may_draw)
        seeder = Seeder(seed, restore=not is_ours) if seeds else None
        runner = Runner(plan, reader, seeder, seed, self._policy)
        for read in reads:
            yield from runner.make(read, within)
            within = 0

    def check_empty(self, at: Cursor) -> None:
        """Nothing was left of a step. Raises DataError if that would put ranks out of step."""
        if self.settings.exact and self.settings.ranks.world > 1:
            raise DataError(
                f"nothing is left for this rank of the step before position {at.position}, and the"
                " others would go on without it: take larger batches, or filter when writing"
            )

    def _resumed(self, stream: Stream) -> Stream:
        told = self._told
        if told is None:
            return stream
        found = stream.resumed(told.identity, told.cursor.position)
        steps = self.settings.steps(found)
        if told.cursor.within and told.layout != [steps.size, steps.ranks.world]:
            raise DataError(
                f"the state was taken inside a step, with [global batch, ranks] {told.layout},"
                f" which are {[steps.size, steps.ranks.world]} here: go on with those, or save at"
                " the end of a step"
            )
        return found

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which opens it anew. Raises DataError if it cannot."""
        settings = self.settings
        origin = settings.origin
        if origin.is_open:
            raise DataError(
                "a dataset that is open cannot be sent to another process: give its shards to"
                " StreamingDataset, or let workers be forked"
            )
        if self._opened is not None:
            origin = origin.opened_as(self._opened)
        rank, world = settings.ranks
        sent = replace(settings, origin=origin, rank=rank, world_size=world)
        return {**self.__dict__, "settings": sent, "_opened": None, "_stream": None}
