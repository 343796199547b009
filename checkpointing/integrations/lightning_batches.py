"""Going to a batch in the middle of an epoch, in loaders that cannot do it themselves."""

from __future__ import annotations

from typing import Any

from lightning.fabric.utilities.data import (  # type: ignore[import-not-found, unused-ignore]
    _set_sampler_epoch,
)

from checkpointing.errors import CheckpointError


def skip(trainer: Any) -> None:
    """Read and drop the batches that the epoch has had; Lightning counts them as fetched later.

    Raises:
        CheckpointError: `training_step` takes batches from an iterator by itself.
    """
    loop = trainer.fit_loop
    fetcher = loop._data_fetcher
    if hasattr(fetcher, "iterator_wrapper"):
        raise CheckpointError(
            "cannot resume in the middle of an epoch where training_step(dataloader_iter) takes "
            "the batches by itself: give the loader state_dict() and load_state_dict()"
        )
    for loader in loop._combined_loader.flattened:
        _set_sampler_epoch(loader, loop.epoch_progress.current.processed)
    iter(fetcher)  # anew: Lightning has begun the batches before it told the samplers the epoch
    had = loop.epoch_loop.batch_progress.current.ready
    for number in range(had):
        try:
            next(fetcher)
        except StopIteration:
            raise CheckpointError(
                f"the epoch had {had} batches before the interruption, and its loader gives "
                f"{number} now: is it the same data?"
            ) from None
    fetcher.fetched -= had
