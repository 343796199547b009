"""Moves loaders that cannot seek to a batch in the middle of an epoch."""

from __future__ import annotations

from typing import Any

from lightning.fabric.utilities.data import (  # type: ignore[import-not-found, unused-ignore]
    _set_sampler_epoch,
)

from checkpointing.errors import CheckpointError


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
