"""The options of a `StreamingDataset`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data.errors import PipelineError
from data.order.sample_order import OrderOptions
from data.read.bad_samples import Policy
from data.read.loader_options import ErrorBudgetOptions, PrefetchOptions
from data.read.shards.shard_samples import Check
from data.source.sources import Sources
from data.wds.pass_steps import Tail


@dataclass(frozen=True, kw_only=True)
class StreamingOptions(OrderOptions, PrefetchOptions, ErrorBudgetOptions):
    """The options of a `StreamingDataset`. Raises DataError for an impossible value.

    What is prefetched counts in each process: of a `DataLoader`, in each worker.
    """

    cache: str | Path | None = None
    """The cache folder, as of `open_dataset`."""
    cache_bytes: int = 0
    """The most bytes that the cache may hold, as of `open_dataset`."""
    sources: Sources | None = None
    """Access to shards that are not local; None: `Sources()`."""
    check: Check = "auto"
    """What of each sample is compared with the index, as of `open_dataset`."""
    repeated_shards: Literal["raise", "keep"] = "raise"
    """What becomes of a shard that is given several times, as of `open_dataset`."""
    rename_files: Callable[[str], str] | None = None
    """The names by which members are grouped into samples, as of `open_dataset`."""
    global_batch: int | None = None
    """Samples of a step over all ranks; None: the size of `batched` times the ranks, or without
    `batched` one each."""
    rank: int | None = None
    """The rank of this process; None: that of torch.distributed, or of the environment."""
    world_size: int | None = None
    """The number of ranks; None: that of torch.distributed, or of the environment."""
    tail: Tail | None = None
    """How the end of an epoch is handled, see `PassSteps`; None: "drop" after
    `batched(partial=False)`, "straddle" with `with_epoch` or `repeat()`, else "partial"."""
    errors: Policy | None = None
    """The policy for samples that cannot be read, or that a stage fails on, see `BadSampleBudget`.
    None: such errors are raised, but skipped and counted if a handler of the stage accepts them."""
    read_errors: Policy | None = None
    """The policy for samples that cannot be read; None: that of `errors`."""
    exact: bool = True
    """Whether a stage is refused that would make positions inexact."""
    seeded: bool = True
    """Whether random, numpy and torch are seeded for each sample by its position."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.global_batch is not None and self.global_batch < 1:
            raise PipelineError(f"expected a number of at least 1, got {self.global_batch}")
