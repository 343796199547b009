"""The source of a run's batches: any iterable as `run.steps` takes it, with the position that the
run saves and resumes.

There are three kinds. A loader of hpckit (`data.Loader`, `from_wds`) has one state for all ranks,
which any number of ranks can load. Another loader with a state has one on each rank. An iterable
without a state is iterated again, and what the run has seen is discarded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from data import Batch, BatchRamp, DatasetGrowth, MixtureChange, SourceProgress, Usage
from hpckit.trainer.batches.loader_state import epoch_setters, methods_of
from hpckit.trainer.errors import TrainingError

log = logging.getLogger(__name__)

OtherWorldRule: TypeAlias = (
    Literal["error", "first", "next_epoch"] | Callable[[Sequence[Any], int, int], Any]
)
"""What becomes of a position that was saved for each rank of another number of ranks, see
`TrainingRun.steps`."""


@dataclass(frozen=True)
class StepSourceOptions:
    """What a source needs to know of its run."""

    seed: Callable[[int], None]
    """Seeds the random number generators of this process for a step."""
    part: tuple[int, int] = (0, 1)
    """The number of the part of each global batch that this rank takes, and the number of parts."""
    local_batch: int = 1
    """Number of samples of a batch that does not say how many it has."""
    other_world: OtherWorldRule = "error"
    """What becomes of the position if the number of ranks is another one."""
    repeats_first: bool = False
    """Whether every step gets the first batch (`debug.overfit`)."""


@dataclass(frozen=True)
class SkippedBatches:
    """The batches that were read again and discarded on a resume, and what that took."""

    loader: str
    """Name of the class of the iterable."""
    batches: int
    seconds: float
    is_iterator: bool
    """Whether the iterable is an iterator, which nothing can begin again."""

    def __str__(self) -> str:
        text = (
            f"{self.batches} batches of {self.loader} were read again and discarded in "
            f"{self.seconds:.1f} s to resume, because it has no state_dict and load_state_dict; "
            "torchdata's StatefulDataLoader and data.Loader resume without this"
        )
        if not self.is_iterator:
            return text
        return (
            f"{text}; as an iterator it cannot begin again, so the training function has to make "
            "it again from the first batch each time it is called"
        )


class StepSource:
    """The batches of a run, one for each step, over as many epochs as it takes.

    The generators are seeded by the step before each batch, and by the first step of an epoch
    before the epoch begins: an order that is drawn from them is the same after a resume.
    """

    def __init__(self, loader: Iterable[Any], options: StepSourceOptions) -> None:
        self.loader, self._options = loader, options
        self.name = type(loader).__name__
        self._epoch, self._first_step = 0, 0
        """The present epoch, and the number of steps that were finished when it began."""
        self._iterator: Iterator[Any] | None = None
        self._repeated: list[Any] = []
        self._batches = self._samples = 0
        self._wait_s = self._begun_s = self._ended_s = 0.0

    @property
    def tracked(self) -> Any:
        """What a checkpoint holds for the loader."""
        raise NotImplementedError

    @property
    def usage(self) -> Usage:
        """The time spent so far, by kind; without what only the loader could tell."""
        return Usage(
            batches=self._batches,
            samples=self._samples,
            wait_s=self._wait_s,
            elapsed_s=self._ended_s - self._begun_s,
        )

    @property
    def foreign_loader(self) -> str | None:
        """The class of the loader, with its module; None: it is one of hpckit."""
        kind = type(self.loader)
        return f"{kind.__module__}.{kind.__qualname__}"

    @property
    def store_counts(self) -> Mapping[str, float]:
        """The counters of the caches that it reads from, if it knows them."""
        return {}

    @property
    def sources(self) -> Sequence[SourceProgress]:
        """How far each dataset of a mixture has been read; empty without one."""
        return ()

    @property
    def mixture_change(self) -> MixtureChange | None:
        """How the weights of a mixture have changed with the resume; None: they have not."""
        return None

    @property
    def batch_ramp(self) -> list[int] | None:
        """The start, increment, samples and full size of a batch that grows; None: it does not."""
        return None

    @property
    def batch_ramp_change(self) -> tuple[BatchRamp | None, BatchRamp | None] | None:
        """The ramps before and after a resume that has changed it."""
        return None

    @property
    def growth(self) -> DatasetGrowth | None:
        """How the dataset has grown since the state that was restored; None: it has not."""
        return None

    @property
    def samples_seen(self) -> int | None:
        """Number of samples of all steps so far, over all ranks, if the loader knows it."""
        return None

    @property
    def samples(self) -> int | None:
        """Number of samples of an epoch over all ranks, if positions count them."""
        return None

    @property
    def position(self) -> int | None:
        """Position in the stream of samples, if it is one number for all ranks."""
        return None

    def resume(self, step: int, beat: Callable[[], None]) -> SkippedBatches | None:
        """Prepare to continue after `step` finished steps, once the state is restored.

        Args:
            beat: called at each batch that is read again and discarded.

        Returns:
            What was discarded, if anything.

        Raises:
            TrainingError: the iterable does not have the batches that it had before.
        """
        return None

    def take(self, step: int) -> Any:
        """Return the batch of the step after `step` finished ones.

        Raises:
            TrainingError: there are no more batches, and no next epoch.
        """
        began_s = time.perf_counter()
        if self._options.repeats_first:
            self._repeated = self._repeated or [self._take(0)]
            self._options.seed(step)
            batch = self._repeated[0]
        else:
            batch = self._take(step)
        self._note(batch, began_s)
        return batch

    def close(self) -> None:
        """End the iteration, with its threads and processes."""
        self._iterator = None

    def _take(self, step: int) -> Any:
        if self._iterator is None:
            self._iterate()
        assert self._iterator is not None
        while True:
            self._options.seed(step)
            try:
                return next(self._iterator)
            except StopIteration:
                self._begin_next_epoch(step)

    def _begin_next_epoch(self, step: int) -> None:
        is_spent = step == self._first_step or self._iterator is self.loader
        if step == 0:
            raise TrainingError(f"run.steps({self.name}): it has no batch")
        if is_spent:
            raise TrainingError(
                f"run.steps({self.name}): it has no more batches after step {step}, and cannot be "
                "iterated once more. Give an iterable whose every iteration is an epoch, such as a "
                f"DataLoader, an endless iterator, or train.steps={step}"
            )
        if self._epoch == 0:
            log.info(
                "the batches of %s ended after step %d: the next epoch begins, and so on until "
                "train.steps",
                self.name,
                step,
            )
        self._epoch, self._first_step = self._epoch + 1, step
        self._iterate()

    def _iterate(self) -> None:
        """Begin the present epoch, or continue in it where a state was loaded."""
        self._options.seed(self._first_step)
        for set_epoch in epoch_setters(self.loader):
            set_epoch(self._epoch)
        self._iterator = iter(self.loader)

    def _note(self, batch: Any, began_s: float) -> None:
        self._ended_s = time.perf_counter()
        self._begun_s = self._begun_s or began_s
        self._wait_s += self._ended_s - began_s
        self._batches += 1
        self._samples += len(batch.keys) if isinstance(batch, Batch) else self._options.local_batch


class SharedStateSource(StepSource):
    """A loader of hpckit, whose state is the same on all ranks and can be loaded on any number of
    them."""

    def __init__(self, loader: Iterable[Any], options: StepSourceOptions) -> None:
        super().__init__(loader, options)
        self._methods = methods_of(loader)
        self._first = self._methods.take() if options.repeats_first else None
        self.counts_samples = hasattr(loader, "store_counts")
        """Whether it is a `data.Loader`, whose batches name their samples."""

    @property
    def foreign_loader(self) -> str | None:
        return None

    @property
    def tracked(self) -> Any:
        return self.loader

    @property
    def usage(self) -> Usage:
        return getattr(self.loader, "usage", None) or super().usage

    @property
    def store_counts(self) -> Mapping[str, float]:
        return getattr(self.loader, "store_counts", {})

    @property
    def sources(self) -> Sequence[SourceProgress]:
        return getattr(self.loader, "sources", ())

    @property
    def mixture_change(self) -> MixtureChange | None:
        return getattr(self.loader, "mixture_change", None)

    @property
    def batch_ramp(self) -> list[int] | None:
        return self._methods.take().get("batch_ramp") if self.counts_samples else None

    @property
    def batch_ramp_change(self) -> tuple[BatchRamp | None, BatchRamp | None] | None:
        return getattr(self.loader, "batch_ramp_change", None)

    @property
    def growth(self) -> DatasetGrowth | None:
        return getattr(self.loader, "growth", None)

    @property
    def samples_seen(self) -> int | None:
        return getattr(self.loader, "samples_seen", None)

    @property
    def samples(self) -> int | None:
        if (
            not self.counts_samples or self.sources or "pack" in self._methods.take()
        ):  # documents span steps
            return None
        if getattr(self.loader, "has_grown", False):  # epochs have different numbers of them
            return None
        return getattr(self.loader, "samples", None)

    @property
    def position(self) -> int | None:
        return self._methods.take()["position"] if self.counts_samples else None

    def resume(self, step: int, beat: Callable[[], None]) -> SkippedBatches | None:
        if self._first is not None:
            self._methods.load(self._first)
        return None

    def close(self) -> None:
        super().close()
        if close := getattr(self.loader, "close", None):
            close()

    def _iterate(self) -> None:
        self._options.seed(self._first_step)
        self._iterator = iter(self.loader)
