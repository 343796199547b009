"""Running the stages: from the bytes of a step to the items that the pipeline delivers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from data.errors import DataError, SampleError
from data.read.bad_samples import SUBSTITUTES, BadSampleBudget
from data.read.batches.batch_fetcher import substitute
from data.wds.pipeline_cursor import Cursor
from data.wds.pipeline_source import ShareRead, ShareReader
from data.wds.stages.sample_seeds import BATCH, Seeder, uniform
from data.wds.stages.stage_chain import DROPPED, HandledError, StageChain, StoppedError
from data.wds.stages.stage_kinds import Stage, arguments, invoke, per_sample
from data.wds.stages.stage_plan import StagePlan, is_rsample


class PipelineItem(NamedTuple):
    """An item to deliver, or EMPTY, and the cursor after its delivery."""

    item: Any
    cursor: Cursor


class Empty:
    """The type of EMPTY, which marks a step or a sample of which nothing was left."""


EMPTY = Empty()


@dataclass(frozen=True)
class StageErrorPolicy:
    """The policy for samples that the stages fail on."""

    raised: BadSampleBudget
    handled: BadSampleBudget
    """The policy where a handler of the stage accepts the error."""


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
        self._samples = StageChain(self._with_choices(plan.samples))
        self._batches = StageChain(self._with_choices(plan.batches))

    def make(self, read: ShareRead, within: int) -> Iterator[PipelineItem]:
        """Yield the item of a step, or its samples one by one from number `within` on."""
        if self._plan.batching is None:
            yield from self._one_by_one(read, within)
        else:
            yield PipelineItem(self._batch(read), Cursor(read.share.after))

    def _batch(self, read: ShareRead) -> Any:
        batching = self._plan.batching
        assert batching is not None
        positions = read.share.positions.tolist()
        found = _by_position(read)
        with self._seeding():
            rows = [self._sample(position, found.get(position, DROPPED)) for position in positions]
            rows = [row for row in rows if row is not DROPPED]
            if not rows:
                return EMPTY
            where = f"positions {positions[0]}..{positions[-1]}"
            self._seed_at(positions[0], BATCH)
            batch = rows
            if batching.collate is not None:
                try:
                    batch = batching.collate(rows)
                except Exception as error:
                    problem = describe_error(error)
                    raise DataError(f"collation failed on {where}: {problem}") from error
            try:
                batch = self._batches.run(batch)
            except DataError:
                raise
            except Exception as error:  # noqa: BLE001 (whatever the user's code raises)
                cause = error.__cause__ or error
                problem = f"a stage failed on the batch of {where}: {describe_error(cause)}"
                raise DataError(problem) from cause
        return EMPTY if batch is DROPPED else batch

    def _one_by_one(self, read: ShareRead, within: int) -> Iterator[PipelineItem]:
        positions = read.share.positions.tolist()
        found = _by_position(read)
        for number, position in enumerate(positions[within:], start=within + 1):
            with self._seeding():
                item = self._sample(position, found.get(position, DROPPED))
            last = number == len(positions)
            cursor = Cursor(read.share.after) if last else Cursor(read.begin, within=number)
            yield PipelineItem(EMPTY if item is DROPPED else item, cursor)

    def _sample(self, position: int, sample: Any) -> Any:
        """Return the result of a sample; DROPPED if it is left out."""
        if sample is DROPPED:
            return DROPPED
        key, url = sample["__key__"], sample["__url__"]
        try:
            return self._run(position, sample)
        except (HandledError, StoppedError, DataError) as error:
            if isinstance(error, DataError):
                raise
            cause = error.__cause__ or error
            handled = isinstance(error, HandledError)
        except Exception as error:  # noqa: BLE001 (whatever the user's code raises)
            cause, handled = error, False
        failed = SampleError(position, key, url, describe_error(cause))
        failed.__cause__ = cause
        faults = self._policy.handled if handled else self._policy.raised
        faults.bad(failed)
        return (
            self._substitute_result(position, failed) if faults.policy == "substitute" else DROPPED
        )

    def _run(self, position: int, sample: Any) -> Any:
        self._position = position
        self._seed_at(position)
        found = self._samples.run(sample)
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
            sample = self._reader.read_one(other)
            if sample is None:
                continue
            key, url = sample["__key__"], sample["__url__"]
            try:
                return self._run(position, sample)
            except DataError:
                raise
            except Exception as error:  # noqa: BLE001
                cause = error.__cause__ or error
                self._policy.raised.bad(SampleError(other, key, url, describe_error(cause)))
        raise failed

    def _seed_at(self, position: int, purpose: int = 0) -> None:
        if self._seeder is not None:
            self._seeder.at(position, purpose)

    def _seeding(self) -> Any:
        return _NOTHING if self._seeder is None else self._seeder.around()

    def _with_choices(self, stages: Sequence[Stage]) -> list[Stage]:
        return [
            self._rsample(arguments(stage)["p"], number) if is_rsample(stage) else stage
            for number, stage in enumerate(stages)
        ]

    def _rsample(self, p: float, number: int) -> Stage:
        """Return a stage like `rsample` whose choice depends on the position."""
        if not 0 <= p <= 1:
            raise DataError(f"rsample({p!r}): expected a probability in 0..1")

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
                raise DataError(
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
                    yield found[position]
        self._over = True


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


_NOTHING = _Nothing()


def _by_position(read: ShareRead) -> dict[int, Any]:
    return dict(zip(read.batch.positions, read.batch.data, strict=True))


def describe_error(error: BaseException) -> str:
    """Return an error and its cause as one line."""
    text = f"{type(error).__name__}: {error}"
    cause = error.__cause__
    return text if cause is None else f"{text} ({type(cause).__name__}: {cause})"
