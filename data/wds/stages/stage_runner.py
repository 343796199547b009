"""Running the stages: from the bytes of a step to the items that the pipeline delivers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from webdataset import autodecode

from data.errors import DataError, PipelineError, SampleError
from data.read.bad_samples import SUBSTITUTES, BadSampleBudget
from data.read.batches.batch_fetcher import substitute
from data.wds.pipeline_cursor import Cursor
from data.wds.pipeline_errors import BatchStageError, DecodingSampleError, StageSampleError
from data.wds.pipeline_source import ShareRead, ShareReader
from data.wds.stages.sample_seeds import BATCH, SAMPLE, Seeder, uniform
from data.wds.stages.stage_chain import DROPPED, HandledError, StageChain, StoppedError
from data.wds.stages.stage_kinds import Stage, arguments, describe_stage, invoke, per_sample
from data.wds.stages.stage_plan import StageGroup, StagePlan, batch_ends, is_rsample

_PURPOSES = 1 << 32
"""The purposes of seeds that each group of stages has for itself."""
_GROUP = 1 << 16
"""The numbers of choices that each group of stages has for itself."""
_NO_SAMPLE = object()
"""What was not read, or is no longer there."""


class PipelineItem(NamedTuple):
    """An item to deliver, or EMPTY, and the cursor after its delivery."""

    item: Any
    cursor: Cursor
    for_all_ranks: bool = False
    """Whether every rank has the same: that nothing is left of the step."""


class Empty:
    """The type of EMPTY, which marks a step or a sample of which nothing was left."""


EMPTY = Empty()


@dataclass(frozen=True)
class StageErrorPolicy:
    """The policy for samples that the stages fail on."""

    raised: BadSampleBudget
    handled: BadSampleBudget
    """The policy where a handler of the stage accepts the error."""


class _GroupChains(NamedTuple):
    """A group of the plan, and its stages as they are run."""

    group: StageGroup
    samples: StageChain
    batches: StageChain


class StageRunner:
    """Runs samples through the stages of an exact pipeline."""

    def __init__(
        self,
        plan: StagePlan,
        reader: ShareReader,
        seeder: Seeder | None,
        seed: int,
        policy: StageErrorPolicy,
    ) -> None:
        self._plan, self._reader, self._seeder = plan, reader, seeder
        self._policy = policy
        self._position = 0
        self._seed = seed
        self._of_datasets = [StageChain(self._with_choices(own)) for own in plan.of_datasets]
        self._groups = [
            _GroupChains(
                group,
                StageChain(self._with_choices(group.samples, _GROUP * number)),
                StageChain(self._with_choices(group.batches, _GROUP * number)),
            )
            for number, group in enumerate(plan.groups)
        ]

    def make(self, read: ShareRead, within: int) -> Iterator[PipelineItem]:
        """Yield the items of a step from number `within` on."""
        if len(self._groups) == 1 and self._plan.batching is None:
            yield from self._one_by_one(read, within)
            return
        with self._seeding():
            items = self._items(read)
        if not items:
            yield PipelineItem(EMPTY, Cursor(read.share.after), for_all_ranks=True)
        for number, item in enumerate(items[within:], start=within + 1):
            last = number == len(items)
            cursor = Cursor(read.share.after) if last else Cursor(read.begin, within=number)
            yield PipelineItem(EMPTY if item is DROPPED else item, cursor)

    def _items(self, read: ShareRead) -> list[Any]:
        """Return the items that a step gives, DROPPED where nothing is left of one."""
        positions = read.share.positions.tolist()
        found = _by_position(read)
        least = (read.share.after - read.begin) // self._reader.steps.ranks.world
        single = len(self._groups) == 1
        rows = [(p, self._sample(p, found.get(p, _NO_SAMPLE))) for p in positions]
        for number, chains in enumerate(self._groups):
            if number:
                rows = [(p, self._later(number, p, row)) for p, row in rows]
            batching = chains.group.batching
            if batching is None:
                break
            partial = batching.partial or single  # then the tail of the pass decides
            ends = batch_ends(len(rows), least, batching.size, partial)
            parts = [rows[begin:end] for begin, end in pairwise([0, *ends])]
            batches = [(part, self._batch(number, part)) for part in parts]
            if chains.group.split is None:
                return [batch for _, batch in batches]
            rows = [row for part, batch in batches for row in self._split(number, part, batch)]
            least = min(least, len(rows))
        return [row for _, row in rows]

    def _batch(self, number: int, part: list[tuple[int, Any]]) -> Any:
        """Return the batch of some rows; DROPPED if nothing is left of it."""
        chains = self._groups[number]
        batching = chains.group.batching
        assert batching is not None
        rows = [row for _, row in part if row is not DROPPED]
        if not rows:
            return DROPPED
        where = f"positions {part[0][0]}..{part[-1][0]}"
        self._seed_at(part[0][0], BATCH + number * _PURPOSES)
        batch: Any = rows
        if batching.collate is not None:
            try:
                batch = batching.collate(rows)
            except Exception as error:
                problem = describe_error(error)
                raise BatchStageError(f"collation failed on {where}: {problem}") from error
        return self._run_later(chains.batches, batch, part[0][0], f"the batch of {where}")

    def _later(self, number: int, position: int, row: Any) -> Any:
        """Return the result of the stages of a group after the first for a sample."""
        if row is DROPPED:
            return DROPPED
        self._seed_at(position, SAMPLE + number * _PURPOSES)
        chain = self._groups[number].samples
        return self._run_later(chain, row, position, f"the sample of position {position}")

    def _run_later(self, chain: StageChain, item: Any, position: int, where: str) -> Any:
        """Return what stages after a batching make of an item: for its errors, no other sample can
        take its place."""
        self._position = position
        try:
            return chain.run(item)
        except DataError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever the user's code raises)
            cause = error.__cause__ or error
            problem = f"a stage failed on {where}: {describe_error(cause)}"
            raise BatchStageError(problem) from cause

    def _split(self, number: int, part: list[tuple[int, Any]], batch: Any) -> list[tuple[int, Any]]:
        """Return the samples of a batch again, each with the position of the row that it was."""
        if batch is DROPPED:
            return [(position, DROPPED) for position, _ in part]
        stage = self._groups[number].group.split
        where = f"the batch of positions {part[0][0]}..{part[-1][0]}"
        try:
            samples = iter(list(invoke(stage, iter([batch]))))
        except Exception as error:
            problem = f"{describe_stage(stage)} failed on {where}: {describe_error(error)}"
            raise BatchStageError(problem) from error
        rows = [(p, DROPPED if row is DROPPED else next(samples, _NO_SAMPLE)) for p, row in part]
        if next(samples, _NO_SAMPLE) is not _NO_SAMPLE or any(r is _NO_SAMPLE for _, r in rows):
            raise PipelineError(
                f"{describe_stage(stage)} gave another number of samples than {where} was made of,"
                " so no position would be exact: keep it in the stages between, or use exact=False"
            )
        return rows

    def _one_by_one(self, read: ShareRead, within: int) -> Iterator[PipelineItem]:
        positions = read.share.positions.tolist()
        found = _by_position(read)
        for number, position in enumerate(positions[within:], start=within + 1):
            with self._seeding():
                item = self._sample(position, found.get(position, _NO_SAMPLE))
            last = number == len(positions)
            cursor = Cursor(read.share.after) if last else Cursor(read.begin, within=number)
            yield PipelineItem(EMPTY if item is DROPPED else item, cursor)

    def _sample(self, position: int, read: Any) -> Any:
        """Return the result of a sample; DROPPED if it is left out."""
        if read is _NO_SAMPLE:
            return DROPPED
        sample, dataset = read
        key, url = sample["__key__"], sample["__url__"]
        try:
            return self._run(position, sample, dataset)
        except (HandledError, StoppedError, DataError) as error:
            if isinstance(error, DataError):
                raise
            cause = error.__cause__ or error
            handled = isinstance(error, HandledError)
        except Exception as error:  # noqa: BLE001 (whatever the user's code raises)
            cause, handled = error, False
        failed = stage_error(position, key, url, cause)
        failed.__cause__ = cause
        faults = self._policy.handled if handled else self._policy.raised
        faults.bad(failed)
        return (
            self._substitute_result(position, failed) if faults.policy == "substitute" else DROPPED
        )

    def _run(self, position: int, sample: Any, dataset: int) -> Any:
        self._position = position
        self._seed_at(position)
        if self._of_datasets:
            sample = self._of_datasets[dataset].run(sample)
        found = DROPPED if sample is DROPPED else self._groups[0].samples.run(sample)
        for faults in (self._policy.raised, self._policy.handled):
            if faults.in_a_row:
                faults.good()
        return found

    def _substitute_result(self, position: int, failed: SampleError) -> Any:
        """Return the result of a substitute sample, with the random numbers of the position that it
        takes."""
        stream = self._reader.stream
        for attempt in range(1, SUBSTITUTES + 1):
            other = substitute(position, attempt, stream.samples, stream.streams)
            read = self._reader.read_one(other)
            if read is None:
                continue
            sample, dataset = read
            key, url = sample["__key__"], sample["__url__"]
            try:
                return self._run(position, sample, dataset)
            except DataError:
                raise
            except Exception as error:  # noqa: BLE001
                cause = error.__cause__ or error
                self._policy.raised.bad(stage_error(other, key, url, cause))
        raise failed

    def _seed_at(self, position: int, purpose: int = 0) -> None:
        if self._seeder is not None:
            self._seeder.at(position, purpose)

    def _seeding(self) -> Any:
        return _NOTHING if self._seeder is None else self._seeder.around()

    def _with_choices(self, stages: Sequence[Stage], first: int = 0) -> list[Stage]:
        return [
            self._rsample(arguments(stage)["p"], number) if is_rsample(stage) else stage
            for number, stage in enumerate(stages, start=first)
        ]

    def _rsample(self, p: float, number: int) -> Stage:
        """Return a stage like `rsample` whose choice depends on the position."""
        if not 0 <= p <= 1:
            raise PipelineError(f"rsample({p!r}): expected a probability in 0..1")

        def chosen(source: Iterable[Any]) -> Iterator[Any]:
            return (each for each in source if uniform(self._seed, self._position, number) < p)

        return per_sample(chosen)


class InexactRunner:
    """Runs the samples through stages of any kind."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._chain = StageChain([])
        self._stages = [self._chain.watched(stage) for stage in stages]
        self._fed = Cursor(0)
        self._over = False

    def make(self, reads: Iterator[ShareRead], cursor: Cursor) -> Iterator[PipelineItem]:
        """Yield all that the stages return; the cursor counts what was read."""
        self._fed = cursor
        out: Iterator[Any] = self._feed(reads)
        for stage in self._stages:
            out = invoke(stage, out)
        for item in out:
            yield PipelineItem(item, self._fed)
        if not self._over:
            error = self._chain.caught
            if error is not None:
                raise BatchStageError(
                    f"a handler stopped the pipeline before position {self._fed.position}:"
                    f" {describe_error(error)}"
                ) from error
            return  # a stage such as slice needs no more
        yield PipelineItem(EMPTY, self._fed)

    def _feed(self, reads: Iterator[ShareRead]) -> Iterator[Any]:
        for read in reads:
            positions = read.share.positions.tolist()
            found = _by_position(read)
            for number, position in enumerate(positions, start=1):
                last = number == len(positions)
                self._fed = Cursor(read.share.after) if last else Cursor(read.begin)
                if position in found:
                    yield found[position][0]
        self._over = True


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


_NOTHING = _Nothing()


def _by_position(read: ShareRead) -> dict[int, tuple[Any, int]]:
    """Return the samples that were read, each with the number of its dataset."""
    batch = read.batch
    return dict(zip(batch.positions, zip(batch.data, batch.datasets, strict=True), strict=True))


def stage_error(position: int, key: str, url: str, cause: BaseException) -> SampleError:
    """Return the error of a sample that a stage failed on, of the kind that webdataset raises
    there."""
    kind = DecodingSampleError if isinstance(cause, autodecode.DecodingError) else StageSampleError
    return kind(position, key, url, describe_error(cause))


def describe_error(error: BaseException) -> str:
    """Return an error and its cause as one line."""
    text = f"{type(error).__name__}: {error}"
    cause = error.__cause__
    return text if cause is None else f"{text} ({type(cause).__name__}: {cause})"
