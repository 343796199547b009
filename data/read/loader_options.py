"""The options of a `Loader`, by subject; `data.wds.streaming_options` has those of a
`StreamingDataset`, which shares them."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from data.errors import DataError
from data.keyword_options import check_takes
from data.order.batch_ramp import BatchRamp
from data.order.rank_shares import Tail, Uneven
from data.order.sample_order import OrderOptions, whole_number
from data.read.bad_samples import BadSampleBudget, Policy
from data.read.batch import SampleContext
from data.read.processes import StartMethod
from data.read.shards.local_file_samples import Sample

if TYPE_CHECKING:
    from data.read.sequences.packed_batches import Packing


@dataclass(frozen=True, kw_only=True)
class PrefetchOptions:
    """How far and by how many threads batches and shards are prefetched. Raises DataError for an
    impossible number."""

    prefetch: int = 2
    """Batches (of a pipeline: steps) that are prefetched."""
    threads: int = 2
    """Reader threads; with 0 the consumer reads each batch itself, for debugging."""
    downloads: int = 4
    """Simultaneous downloads of shards that are not files of this machine."""

    def __post_init__(self) -> None:
        _make_whole(self)
        if min(self.prefetch, self.threads + 1, self.downloads) < 1:
            raise DataError("prefetch and downloads must be at least 1, threads at least 0")


@dataclass(frozen=True, kw_only=True)
class ErrorBudgetOptions:
    """The number of bad samples that are accepted; see `BadSampleBudget`."""

    most_errors: int = 100
    most_errors_in_a_row: int = 10

    def budget(self, policy: Policy) -> BadSampleBudget:
        """Return a new budget with these limits. Raises DataError for an invalid policy or
        limit."""
        return BadSampleBudget(policy, self.most_errors, self.most_errors_in_a_row)


def _make_whole(options: PrefetchOptions) -> None:
    """Make each number of some options an int. Raises DataError for one that is not whole."""
    for field in fields(options):
        value = getattr(options, field.name)
        if field.type is int or (field.type == int | None and value is not None):
            try:
                object.__setattr__(options, field.name, whole_number(field.name, value))
            except ValueError as error:
                raise DataError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(OrderOptions, PrefetchOptions, ErrorBudgetOptions):
    """The options of a `Loader`. Raises DataError for an impossible value."""

    global_batch: int
    """Samples of a global step, over all ranks; with `pack`, sequences."""
    batch_ramp: BatchRamp | None = None
    """How a global step grows to `global_batch` samples; None: it always has as many."""
    rank: int = 0
    """The rank of this process in its data-parallel group."""
    world_size: int = 1
    """The size of the data-parallel group."""
    uneven: Uneven = "error"
    """What happens if `world_size` does not divide `global_batch`: see
    `data.order.rank_shares.share`."""
    tail: Tail = "straddle"
    """How the end of an epoch is handled: see `data.order.rank_shares.step_at`."""
    epochs: int | None = None
    """The number of epochs after which iteration ends; None: it never ends."""
    transform: Callable[[Sample, SampleContext], Any] | None = None
    """The function that makes an item of each sample. It runs in several threads or processes."""
    collate: Callable[[list[Any]], Any] | None = None
    """The function that makes the data of a batch of its items; None: they stay a list."""
    pack: "Packing | None" = None
    """How documents of tokens are packed into sequences, which `global_batch` then counts."""
    grow: Literal["refuse", "next_epoch"] = "refuse"
    """What becomes of shards that were added after those of the state that is resumed. "refuse": it
    is the state of another dataset; "next_epoch": the epoch that has begun goes on without them,
    and they are part of the next one."""
    errors: Policy = "raise"
    """What happens with samples that cannot be read or transformed: see `BadSampleBudget`."""
    workers: int = 0
    """Reader processes that make the batches in place of threads, each at most `prefetch` batches
    ahead: for Python code that holds the interpreter's lock."""
    start_method: StartMethod = "spawn"
    """How reader processes are started: see `ProcessPrefetcher`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transform is not None:
            check_takes("transform", self.transform, ("sample", "context"))
        if self.collate is not None:
            check_takes("collate", self.collate, ("items",))
        if self.global_batch < 1:
            raise DataError(f"global_batch must be at least 1, got {self.global_batch}")
        if self.workers < 0 or self.start_method not in get_args(StartMethod):
            raise DataError(
                f"workers must be 0 or more, start_method one of {get_args(StartMethod)};"
                f" got {self.workers}, {self.start_method!r}"
            )
        if self.epochs is not None and self.epochs < 1:
            raise DataError(f"epochs must be at least 1, or None for no end; got {self.epochs}")
        ramp = self.batch_ramp
        if not isinstance(ramp, BatchRamp | None):
            raise DataError(f"batch_ramp must be a data.BatchRamp or None, got {ramp!r:.100}")
        if ramp is not None and (ramp.size, self.tail) != (self.global_batch, "straddle"):
            raise DataError(
                f"batch_ramp: it grows to {ramp.size} samples, which global_batch="
                f'{self.global_batch} has to be, with tail="straddle"; got {self.tail!r}'
            )
        if self.grow not in ("refuse", "next_epoch") or (
            self.grow != "refuse" and self.tail != "straddle"
        ):
            raise DataError(
                'grow must be "refuse", or "next_epoch" with tail="straddle"; '
                f"got {self.grow!r} with {self.tail!r}"
            )
        if self.pack is not None and self.errors == "substitute":
            raise DataError(
                'errors="substitute": no other document has the same length; use "skip"'
            )
