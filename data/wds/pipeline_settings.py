"""The settings of a pipeline, and what follows from them."""

from dataclasses import dataclass, field

from data.errors import DataError
from data.read.bad_samples import BadSampleBudget, Policy
from data.read.sample_stream import SampleStream
from data.wds import ranks_and_workers
from data.wds.pass_steps import PassSteps, Tail
from data.wds.pipeline_source import PipelineInput
from data.wds.ranks_and_workers import DataParallelRank
from data.wds.stages.stage_kinds import Stage
from data.wds.stages.stage_plan import StagePlan, plan_of


@dataclass(frozen=True)
class PipelineSettings:
    """The settings of one pipeline, without a position. Fields are as of `StreamingDataset`."""

    origin: PipelineInput
    global_batch: int | None
    rank: int | None
    world_size: int | None
    tail: Tail | None
    errors: Policy | None
    read_errors: Policy
    most_errors: int
    most_errors_in_a_row: int
    exact: bool
    seeded: bool
    prefetch: int
    threads: int
    downloads: int
    stages: tuple[Stage, ...] = ()
    items: int | None = None
    """Items of a pass, on each rank; None if `epochs` gives the length."""
    epochs: int | None = 1
    """Epochs of the stream in a pass; None: it never ends."""
    plan: StagePlan = field(init=False)
    """The plan of an exact pipeline; without stages if it is not exact."""

    def __post_init__(self) -> None:
        if min(self.prefetch, self.threads + 1, self.downloads) < 1:
            raise DataError("prefetch and downloads must be at least 1, threads at least 0")
        for number in (self.items, self.epochs, self.global_batch):
            if number is not None and number < 1:
                raise DataError(f"expected a number of at least 1, got {number}")
        object.__setattr__(self, "plan", plan_of(self.stages) if self.exact else StagePlan())

    @property
    def ranks(self) -> DataParallelRank:
        """The rank of this process and the world size. Raises DataError."""
        return ranks_and_workers.ranks(self.rank, self.world_size)

    def faults(self, policy: Policy) -> BadSampleBudget:
        return BadSampleBudget(policy, self.most_errors, self.most_errors_in_a_row)

    def steps(self, stream: SampleStream) -> PassSteps:
        """Return the steps of this pipeline over a stream. Raises DataError for invalid
        settings."""
        ranks, batching = self.ranks, self.plan.batching
        size = self.global_batch
        if batching is not None:
            size = size or batching.size * ranks.world
            if size != batching.size * ranks.world:
                raise DataError(
                    f"batched({batching.size}) on {ranks.world} ranks makes global batches of"
                    f" {batching.size * ranks.world}, and global_batch is {size}: take"
                    f" batched({size / ranks.world:g})"
                )
        elif self.plan.filters and ranks.world > 1:
            raise DataError(
                f"samples are left out and not batched: the {ranks.world} ranks would not keep"
                " step; add batched() after select() and rsample(), or take exact=False"
            )
        if self.items is not None and self.tail not in (None, "straddle"):
            raise DataError(f'with_epoch() needs tail="straddle", got {self.tail!r}')
        size = size or ranks.world
        if self.items is not None:
            length: int | None = self.items * size
        else:
            length = None if self.epochs is None else self.epochs * stream.samples
        return PassSteps(stream, size, ranks, self.tail or self._default_tail(), length)

    def _default_tail(self) -> Tail:
        """Return the tail that webdataset would use."""
        if self.items is not None or self.epochs is None:
            return "straddle"
        batching = self.plan.batching
        return "partial" if batching is None or batching.partial else "drop"
