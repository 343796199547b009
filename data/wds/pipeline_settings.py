"""The settings of a pipeline, and what follows from them."""

from dataclasses import dataclass, field

from data.errors import DataError
from data.read.sample_stream import SampleStream
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
    epochs: int | None = 1
    """Epochs of the stream in a pass; None: it never ends."""
    plan: StagePlan = field(init=False)
    """The plan of an exact pipeline; without stages if it is not exact."""

    def __post_init__(self) -> None:
        for number in (self.items, self.epochs):
            if number is not None and number < 1:
                raise DataError(f"expected a number of at least 1, got {number}")
        object.__setattr__(
            self, "plan", plan_of(self.stages) if self.options.exact else StagePlan()
        )

    @property
    def ranks(self) -> DataParallelRank:
        """The rank of this process and the world size. Raises DataError."""
        return ranks_and_workers.ranks(self.options.rank, self.options.world_size)

    def steps(self, stream: SampleStream) -> PassSteps:
        """Return the steps of this pipeline over a stream. Raises DataError for invalid
        settings."""
        ranks, batching = self.ranks, self.plan.batching
        size, tail = self.options.global_batch, self.options.tail
        if batching is not None:
            size = size or batching.size * ranks.world
            if size != batching.size * ranks.world:
                raise DataError(
                    f"batched({batching.size}) on {ranks.world} ranks makes global batches of "
                    f"{batching.size * ranks.world}, but global_batch is {size}: use "
                    f"batched({size / ranks.world:g})"
                )
        elif self.plan.filters and ranks.world > 1:
            raise DataError(
                f"samples are left out and not batched: the {ranks.world} ranks would get out of "
                "step; add batched() after select() and rsample(), or use exact=False"
            )
        if self.items is not None and tail not in (None, "straddle"):
            raise DataError(f'with_epoch() requires tail="straddle", got {tail!r}')
        size = size or ranks.world
        if self.items is not None:
            length: int | None = self.items * size
        else:
            length = None if self.epochs is None else self.epochs * stream.samples
        return PassSteps(stream, size, ranks, tail or self._default_tail(), length)

    def _default_tail(self) -> Tail:
        """Return the tail that webdataset would use."""
        if self.items is not None or self.epochs is None:
            return "straddle"
        batching = self.plan.batching
        return "partial" if batching is None or batching.partial else "drop"
