"""The settings of a pipeline, and what follows from them."""

from dataclasses import dataclass, field
from fractions import Fraction

from data.errors import PipelineError
from data.read.sample_stream import SampleStream
from data.read.sliced_stream import BlockSlice, SlicedStream
from data.wds import ranks_and_workers
from data.wds.pass_steps import PassSteps, Tail
from data.wds.pipeline_source import PipelineInput
from data.wds.ranks_and_workers import DataParallelRank
from data.wds.stages.stage_kinds import Stage
from data.wds.stages.stage_plan import StagePlan, plan_of
from data.wds.streaming_options import StreamingOptions


@dataclass(frozen=True)
class PipelineSettings:
    """The settings of one pipeline, without a position: its input, options and stages."""

    origin: PipelineInput
    options: StreamingOptions
    stages: tuple[Stage, ...] = ()
    items: int | None = None
    """Items of a pass, on each rank; None if `epochs` gives the length."""
    epochs: int | Fraction | None = 1
    """Epochs of the stream in a pass; None: it never ends."""
    of_datasets: tuple[tuple[Stage, ...], ...] = ()
    """The stages of each dataset of a mixture, which come before `stages`."""
    plan: StagePlan = field(init=False)
    """The plan of an exact pipeline; without stages if it is not exact."""

    def __post_init__(self) -> None:
        for number, least in ((self.items, 1), (self.epochs, 0)):
            if number is not None and not number >= least:
                raise PipelineError(f"expected a number of at least 1, got {number}")
        if self.of_datasets and not self.options.exact:
            raise PipelineError("a mixture of pipelines is exact: leave exact=False out")
        plan = plan_of(self.stages, self.of_datasets) if self.options.exact else StagePlan()
        object.__setattr__(self, "plan", plan)

    @property
    def ranks(self) -> DataParallelRank:
        """The rank of this process and the world size. Raises DataError."""
        return ranks_and_workers.ranks(self.options.rank, self.options.world_size)

    def sliced(self, stream: SampleStream) -> SampleStream:
        """Return the stream of the samples that the slices of the plan choose. Raises
        DataError."""
        for start, stop, step, of_batches in self.plan.slices:
            block = self.step_size if of_batches else 1
            stream = SlicedStream(stream, BlockSlice(start, stop, step, block))
        return stream

    @property
    def step_size(self) -> int:
        """The samples of a step over all ranks. Raises PipelineError for invalid settings."""
        world, given, plan = self.ranks.world, self.options.global_batch, self.plan
        batching = plan.batching
        if batching is not None:
            if given is not None and given != batching.size * world:
                raise PipelineError(
                    f"batched({batching.size}) on {world} ranks makes global batches of "
                    f"{batching.size * world}, but global_batch is {given}: use "
                    f"batched({given / world:g})"
                )
            return plan.size * world
        if plan.filters and world > 1:
            raise PipelineError(
                f"samples are left out and not batched: the {world} ranks would get out of "
                "step; add batched() after select() and rsample(), or use exact=False"
            )
        size = given or plan.size * world
        if size % (plan.size * world) and plan.size > 1:
            raise PipelineError(
                f"global_batch={given} does not hold whole batches of each of {world} ranks: use a "
                f"multiple of {plan.size * world}"
            )
        return size

    def steps(self, stream: SampleStream) -> PassSteps:
        """Return the steps of this pipeline over a stream. Raises DataError for invalid
        settings."""
        size, tail = self.step_size, self.options.tail
        if self.items is not None and tail not in (None, "straddle"):
            raise PipelineError(f'with_epoch() requires tail="straddle", got {tail!r}')
        if self.items is not None:
            length: int | None = self.items * self._item_size(size)
        else:
            length = None if self.epochs is None else max(1, int(self.epochs * stream.samples))
        return PassSteps(stream, size, self.ranks, tail or self._default_tail(), length)

    def _item_size(self, size: int) -> int:
        """Return the samples of one item on each rank, of which passes of `items` are made."""
        batching = self.plan.batching
        if len(self.plan.groups) == 1:
            return size
        found = self.ranks.world * (1 if batching is None else batching.size)
        assert self.items is not None
        if self.items * found % size:
            raise PipelineError(
                f"with_epoch({self.items}): a pass would end within the batches that unbatched() "
                f"splits; use a multiple of {size // found}"
            )
        return found

    def _default_tail(self) -> Tail:
        """Return the tail that webdataset would use."""
        if self.items is not None or self.epochs is None or isinstance(self.epochs, Fraction):
            return "straddle"
        batching = self.plan.batching
        is_whole = len(self.plan.groups) > 1 or batching is None or batching.partial
        return "partial" if is_whole else "drop"
