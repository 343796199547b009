"""Lightning's loaders: their progress where Lightning reads ahead of training, and the batch in the
middle of an epoch to which those that cannot seek are moved."""

from __future__ import annotations

import copy
from typing import Any

from lightning.fabric.utilities.data import (  # type: ignore[import-not-found, unused-ignore]
    _set_sampler_epoch,
)

from checkpointing.errors import CheckpointError

_LOADERS = "combined_loader"  # key in the state of a fit loop


class Loaders:
    """Records the state of loaders without a length before each batch is fetched.

    Lightning fetches one batch of such loaders ahead, to know which is the last, so their state
    after that is one batch too far to resume from.

    Args:
        fit_loop: the fit loop of a Trainer; its method that runs before a fetch is replaced until
            `close`.
    """

    def __init__(self, fit_loop: Any) -> None:
        self._fit_loop, self._epoch_loop = fit_loop, fit_loop.epoch_loop
        self._begin_fetch = self._epoch_loop._on_before_fetch
        self._before: list[Any] | None = None
        self._epoch_loop._on_before_fetch = self._note

    def loops(self) -> dict[str, Any]:
        """Returns the state of the fit loop between this batch and the next.

        Raises:
            CheckpointError: this version of Lightning fetches batches in another way.
        """
        state: dict[str, Any] = copy.deepcopy(self._fit_loop.state_dict())
        if self._is_ahead() and state["state_dict"].get(_LOADERS):
            if self._before is None:
                raise CheckpointError(
                    "cannot find the position of the loader before Lightning read ahead: use a "
                    "version of Lightning that the README lists, or give the loader a length"
                )
            state["state_dict"][_LOADERS] = self._before
        return state

    def close(self) -> None:
        """Restore the loop's own method."""
        self._epoch_loop._on_before_fetch = self._begin_fetch

    def _note(self) -> None:
        if self._is_ahead():
            self._before = copy.deepcopy(self._fit_loop._combined_loader._state_dicts())
        self._begin_fetch()

    def _is_ahead(self) -> bool:
        fetcher = self._fit_loop._data_fetcher
        return fetcher.length is None and getattr(fetcher, "prefetch_batches", 0) > 0


def skip(trainer: Any) -> None:
    """Read and drop the batches that the epoch has already had; Lightning counts them as fetched
    later.

    Raises:
        CheckpointError: `training_step` itself takes batches from an iterator.
    """
    loop = trainer.fit_loop
    fetcher = loop._data_fetcher
    if hasattr(fetcher, "iterator_wrapper"):
        raise CheckpointError(
            "cannot resume in the middle of an epoch where training_step(dataloader_iter) takes "
            "the batches itself: give the loader state_dict() and load_state_dict()"
        )
    for loader in loop._combined_loader.flattened:
        _set_sampler_epoch(loader, loop.epoch_progress.current.processed)
    # again, because Lightning began the batches before it set the epoch of the samplers
    iter(fetcher)
    had = loop.epoch_loop.batch_progress.current.ready
    for number in range(had):
        try:
            next(fetcher)
        except StopIteration:
            raise CheckpointError(
                f"the epoch had {had} batches before the interruption, but its loader now has "
                f"{number}: is it the same data?"
            ) from None
    fetcher.fetched -= had
