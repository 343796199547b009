"""Captures the progress of a Lightning Trainer as plain values, and restores it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from checkpointing.ranks.rank_group import RankGroup
from checkpointing.state import rng_state
from checkpointing.state.packed_values import pack, unpack

logger = logging.getLogger("checkpointing")


@dataclass(frozen=True)
class LightningProgress:
    """The progress from which a run is resumed.

    Attributes:
        is_epoch_over: whether the save followed the last batch of an epoch.
        rng: this rank's random number generators for the next batch; None: the save was on another
            number of ranks.
        rng_of_batches: the generators from before the batches of the epoch began.
        skips: whether batches must be read and dropped, because the loaders cannot seek.
    """

    is_epoch_over: bool
    rng: dict[str, Any] | None
    rng_of_batches: dict[str, Any] | None
    skips: bool


def gather(
    trainer: Any,
    loops: dict[str, Any],
    epoch_rng: dict[str, Any],
    is_epoch_over: bool,
    ranks: RankGroup,
) -> dict[str, Any]:
    """Returns everything of all ranks that is neither parameter nor optimizer state. Collective.

    Raises:
        TypeError: a state contains a large tensor.
    """
    mine = {"rng": rng_state.capture(), "epoch_rng": epoch_rng, "loops": pack(loops, "loops")}
    callbacks = {c.state_key: pack(c.state_dict(), c.state_key) for c in trainer.callbacks}
    schedulers = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
    datamodule = trainer.datamodule
    return {
        "is_epoch_over": is_epoch_over,
        "callbacks": {key: state for key, state in callbacks.items() if state},
        "schedulers": pack(schedulers, "schedulers"),
        "precision": pack(trainer.precision_plugin.state_dict(), "precision"),
        "datamodule": pack(datamodule.state_dict(), "datamodule") if datamodule else {},
        "ranks": ranks.all_gather(mine, ranks.control),
    }


def within_epoch(loops: dict[str, Any]) -> dict[str, Any]:
    """Returns the loops of a training that was stopped within an epoch, which Lightning has counted
    as done, as they were before that."""
    epochs = loops["epoch_progress"]
    for counts in (epochs["total"], epochs["current"]):
        counts["processed"] = counts["completed"] = counts["started"] - 1
    return loops


def take(trainer: Any, progress: dict[str, Any], ranks: RankGroup) -> LightningProgress:
    """Restore everything except module and optimizers."""
    if is_other_world := len(progress["ranks"]) != ranks.world_size:
        logger.warning(
            "saved by %d ranks, resumed by %d: the epoch's batches are distributed again and "
            "random states are not restored",
            len(progress["ranks"]),
            ranks.world_size,
        )
    mine = progress["ranks"][0 if is_other_world else ranks.rank]
    loops = unpack(mine["loops"])
    loader_states = loops["state_dict"].pop("combined_loader", [])
    if loader_states and not is_other_world:
        loops["state_dict"]["combined_loader"] = loader_states
    trainer.fit_loop.load_state_dict(loops)
    for callback in trainer.callbacks:
        if state := progress["callbacks"].get(callback.state_key):
            callback.load_state_dict(unpack(state))
    schedulers = unpack(progress["schedulers"])
    for config, state in zip(trainer.lr_scheduler_configs, schedulers, strict=True):
        config.scheduler.load_state_dict(state)
    if progress["precision"]:
        trainer.precision_plugin.load_state_dict(unpack(progress["precision"]))
    if trainer.datamodule and progress["datamodule"]:
        trainer.datamodule.load_state_dict(unpack(progress["datamodule"]))
    is_epoch_over = progress["is_epoch_over"]
    rng = None if is_other_world else mine["rng"]
    batches = None if is_other_world else mine["epoch_rng"]
    return LightningProgress(
        is_epoch_over,
        rng,
        rng if is_epoch_over else batches,
        skips=not is_epoch_over and not loader_states,
    )
