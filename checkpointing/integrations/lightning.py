"""A callback for Lightning that saves and resumes a `Trainer.fit` with the Checkpointer.

trainer = L.Trainer(callbacks=[CheckpointerCallback(root, run="gpt", every=Minutes(10))])
trainer.fit(model, loader)  # resumes where the run was, in the middle of an epoch too
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

try:
    import lightning.pytorch as L  # type: ignore[import-not-found, unused-ignore] # noqa: N812
    from lightning.pytorch.callbacks import (  # type: ignore[import-not-found, unused-ignore]
        Checkpoint,
    )
except ImportError as error:
    raise ImportError(
        "checkpointing.integrations.lightning needs Lightning 2.6 or newer: pip install lightning"
    ) from error

from checkpointing.checkpointer import Checkpointer
from checkpointing.integrations.final_save import wait_for_save
from checkpointing.integrations.framework_versions import refuse_older
from checkpointing.integrations.lightning_loaders import Loaders, skip
from checkpointing.integrations.lightning_progress import (
    LightningProgress,
    gather,
    take,
    within_epoch,
)
from checkpointing.integrations.value_item import ValueItem
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.state import rng_state

refuse_older("lightning")

logger = logging.getLogger("checkpointing")

# strategies with flat parameters or shards of their own form
_UNSUPPORTED = ("FSDPStrategy", "DeepSpeedStrategy", "XLAFSDPStrategy")


class CheckpointerCallback(Checkpoint):  # type: ignore[misc, unused-ignore]
    """Saves module, optimizers, schedulers, progress of the loops, states of callbacks, datamodule
    and precision, and random numbers of each rank; restores all of it when `fit` starts.

    A resumed `fit` continues at the next batch. Loaders with state_dict() and load_state_dict() are
    restored by these; of others, the batches that the epoch has already had are read and dropped,
    in the same order as before the interruption. Saves are made at steps of the optimizer, after
    the validation that belongs to the step. The last save is at the end of `fit`, which waits for
    it.

    Not saved: metrics that are being averaged over an epoch, what on_save_checkpoint() adds (keep
    it in buffers or in the state of a callback or the datamodule), and gradients, so that a save
    falls between accumulations. On another number of ranks the module and the optimizers are
    restored exactly, batches and random numbers are not.

    Args:
        root, run, options: as for `Checkpointer`; a step is `trainer.global_step`.
        metrics: names in `trainer.callback_metrics` whose newest values are saved with the step,
            for `Best`.

    Raises (from `fit`): as `Checkpointer` and its `restore`; ValueError: the strategy keeps
    parameters in a form of its own.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        run: str,
        metrics: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self._make = partial(Checkpointer, root, run=run, **options)
        self._metrics = tuple(metrics)
        self._ckpt: Checkpointer | None = None
        self._ranks: RankGroup | None = None
        self._loaders: Loaders | None = None
        self._resumed: LightningProgress | None = None  # until its random numbers are restored
        self._epoch_rng: dict[str, Any] = {}  # generators from before the epoch's batches began
        # the state of the loops at the end of the batch after which a save is due
        self._due: dict[str, Any] | None = None
        self._is_last = False  # whether the save that is due must not be skipped
        self._seen_step = self._saved_step = -1

    def save_next(self) -> None:
        """Save the present step, whatever the policy says. Collective. Call it from
        `on_train_batch_end` of another callback, after a step of the optimizer. The save is made
        before the next batch is trained on, after the validation that belongs to the step."""
        self._due, self._is_last = self._loops(), True

    def finish(self) -> bool:
        """Wait for the newest save, release everything, and return whether that save is durable.
        Collective. It is for a callback that ends the program afterwards."""
        assert self._ckpt is not None
        is_durable = wait_for_save(self._ckpt)
        self._close()
        return is_durable

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the newest checkpoint."""
        _check(trainer, pl_module)
        self._due, self._is_last, self._resumed = None, False, None
        self._restore_loaders()
        self._ranks, self._ckpt = RankGroup(), self._make()
        self._loaders = Loaders(trainer.fit_loop)
        held = ValueItem()
        step = self._ckpt.restore(_state(trainer, held))
        self._seen_step = trainer.global_step
        if step is not None:
            self._resumed = take(trainer, held.value or {}, self._ranks)
            self._seen_step = self._saved_step = step
            rng_state.restore(self._resumed.rng_of_batches or rng_state.capture())
        self._epoch_rng = rng_state.capture()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Move the loaders to the next batch."""
        if self._resumed is not None and self._resumed.skips:
            rng_state.restore(self._resumed.rng_of_batches or rng_state.capture())
            skip(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Record the random numbers from which the order of this epoch follows."""
        if trainer.fit_loop.is_resuming or trainer.current_epoch == 0:
            return  # Lightning has already begun its batches
        if self._resumed is not None and self._resumed.is_epoch_over:
            rng_state.restore(self._resumed.rng or rng_state.capture())
        self._resumed = None
        self._epoch_rng = rng_state.capture()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Make a save that is due, now that everything of the previous step is done."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None and resumed.rng and not resumed.is_epoch_over:
            rng_state.restore(resumed.rng)
        if self._due is not None:
            self._save(trainer, self._due, is_epoch_over=False)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Decide whether to save, once for each step of the optimizer."""
        step = trainer.global_step
        if step == self._seen_step or self._ckpt is None:
            return
        self._seen_step = step
        if self._ckpt.due(step):
            self._due = self._loops()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Make a save that is due, including the results of the validation; the epoch ends
        later."""
        if self._due is not None and not _is_epoch_over(trainer):
            self._save(trainer, self._loops(), is_epoch_over=False)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Make a save that is due after the last batch."""
        if self._due is None:
            return
        is_over = _is_epoch_over(trainer)
        loops = self._loops() if is_over else self._due
        self._save(trainer, loops, is_epoch_over=is_over)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the final state, and wait until it is durable."""
        assert self._ckpt is not None
        if self._saved_step != trainer.global_step or not wait_for_save(self._ckpt):
            is_over = _is_epoch_over(trainer)
            loops = self._loops() if is_over else within_epoch(self._loops())
            self._is_last = True
            self._save(trainer, loops, is_epoch_over=is_over)
        self._close()

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Release the resources of a run that was already complete."""
        self._close()

    def _save(self, trainer: L.Trainer, loops: dict[str, Any], *, is_epoch_over: bool) -> None:
        assert self._ckpt is not None
        assert self._ranks is not None
        self._due, is_last, self._is_last = None, self._is_last, False
        progress = gather(trainer, loops, self._epoch_rng, is_epoch_over, self._ranks)
        logged = trainer.callback_metrics
        metrics = {name: float(logged[name]) for name in self._metrics if name in logged}
        whole = _state(trainer, ValueItem(progress))
        self._ckpt.save(trainer.global_step, whole, metrics, is_last=is_last)
        self._saved_step = trainer.global_step

    def _loops(self) -> dict[str, Any]:
        assert self._loaders is not None
        return self._loaders.loops()

    def _restore_loaders(self) -> None:
        loaders, self._loaders = self._loaders, None
        if loaders is not None:
            loaders.close()

    def _close(self) -> None:
        self._restore_loaders()
        ckpt, self._ckpt, ranks, self._ranks = self._ckpt, None, self._ranks, None
        if ckpt is not None and ranks is not None:
            ckpt.close()
            ranks.close()


def _state(trainer: L.Trainer, progress: ValueItem) -> dict[str, Any]:
    optimizers = trainer.optimizers
    named = {f"optimizer.{index}": optimizer for index, optimizer in enumerate(optimizers)}
    if len(optimizers) == 1:
        named = {"optimizer": optimizers[0]}
    return {"model": trainer.lightning_module, **named, "progress": progress}


def _is_epoch_over(trainer: L.Trainer) -> bool:
    return bool(trainer.fit_loop.epoch_loop.batch_progress.is_last_batch)


def _check(trainer: L.Trainer, module: L.LightningModule) -> None:
    if not isinstance(trainer, L.Trainer):
        raise TypeError(f"expected a Trainer of lightning.pytorch, got {type(trainer)}")
    kind = next(
        (c.__name__ for c in type(trainer.strategy).__mro__ if c.__name__ in _UNSUPPORTED), ""
    )
    if kind:
        raise ValueError(
            f"{kind} keeps parameters in its own format, which is not supported: use DDP or "
            "ModelParallelStrategy"
        )
    if type(module).on_save_checkpoint is not L.LightningModule.on_save_checkpoint:
        logger.warning(
            "%s.on_save_checkpoint() is not called: keep what it would add in buffers of the "
            "module",
            type(module).__qualname__,
        )
