"""A callback for Hugging Face's `Trainer` that saves and resumes it with the Checkpointer.

saver = CheckpointerTrainerCallback(root, run="gpt", every=Minutes(10))
saver.train(trainer)  # in place of trainer.train(): continues where the run was
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

try:
    from transformers import (  # type: ignore[import-not-found, unused-ignore]
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
except ImportError as error:
    raise ImportError(
        "checkpointing.integrations.huggingface needs transformers 5 or newer, and accelerate: "
        "pip install transformers accelerate"
    ) from error

from checkpointing.checkpointer import Checkpointer
from checkpointing.errors import CheckpointError
from checkpointing.integrations.final_save import wait_for_save
from checkpointing.integrations.framework_versions import refuse_older
from checkpointing.integrations.huggingface_state import newest_text, state_text
from checkpointing.integrations.value_item import ValueItem
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.state import rng_state

refuse_older("transformers", "accelerate")

logger = logging.getLogger("checkpointing")

_STATE_FILE = "trainer_state.json"
_LOADS_MODEL = "_load_from_checkpoint"  # the Trainer's method that reads its own files


class CheckpointerTrainerCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Saves model, optimizer, scheduler, gradient scaler, the trainer's state and the random
    numbers of each rank. For one trainer; set `save_strategy="no"`, or the trainer saves its own
    files as well.

    A save that is due after a step is made when the next one begins, so that it includes logs and
    evaluation of the step, and at the end of training, which waits for it. Batches that an epoch
    has already had are skipped as the Trainer does it (`ignore_data_skip`): without reading them if
    the dataset can be indexed.

    Not saved: the sum of losses since the last log, so that the first log after a resume averages
    over fewer steps. On another number of ranks random numbers are not restored.

    Args:
        root, run, options: as for `Checkpointer`; a step is `state.global_step`.
        metrics: names in the log ("eval_loss") whose newest values are saved with the step, for
            `Best`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        run: str,
        metrics: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self._run, self._metrics = run, tuple(metrics)
        self._newest = partial(newest_text, root, run, options.get("options"))
        self._make = partial(Checkpointer, root, run=run, **options)
        self._trainer: Trainer | None = None
        self._ckpt: Checkpointer | None = None
        self._ranks: RankGroup | None = None
        self._text: str | None = None  # the trainer's state with which training begins
        self._rng: dict[str, Any] | None = None  # until the first step begins
        self._is_between_epochs = False  # whether they were captured between epochs
        self._is_due = False
        self._saved_step = -1

    def finish(self) -> bool:
        """Wait for the newest save, close the Checkpointer, and return whether that save is
        durable. Collective. It is for a callback that ends the program afterwards."""
        assert self._ckpt is not None
        is_durable = wait_for_save(self._ckpt)
        self._ckpt.close()
        return is_durable

    def train(self, trainer: Trainer, **options: Any) -> Any:
        """Call `trainer.train`, resuming the run. Returns its result.

        Args:
            options: arguments of `trainer.train`, without resume_from_checkpoint.

        Raises:
            CheckpointError: as `Checkpointer`; or this Trainer cannot be resumed.
            Exception: as `trainer.train`.
        """
        _check(trainer)
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        with ExitStack() as stack:
            self._ranks = RankGroup()
            stack.callback(self._ranks.close)
            self._ckpt = self._make()
            text = self._ranks.from_rank0(self._newest)
            self._trainer = trainer
            stack.callback(self._forget)
            setattr(trainer, _LOADS_MODEL, _leave_to_checkpointer)
            stack.callback(delattr, trainer, _LOADS_MODEL)
            while True:
                try:
                    result = self._train_from(text, options)
                except _RestartTraining as found:
                    text = found.text
                else:
                    self._ckpt.close()
                    return result

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Restore the newest checkpoint."""
        if self._ckpt is None or self._ranks is None:
            raise CheckpointError(
                "this trainer saves through a Checkpointer: call saver.train(trainer) with its "
                "CheckpointerTrainerCallback in place of trainer.train()"
            )
        progress, rng = ValueItem(), ValueItem()
        step = self._ckpt.restore(self._state(held, progress, rng))
        text = None if step is None else str((progress.value or {})["state"])
        if text != self._text:
            raise _RestartTraining(text)
        self._is_due, self._rng, self._saved_step = False, None, -1
        if step is not None:
            self._saved_step = step
            self._is_between_epochs = (rng.value or {})["is_between_epochs"]
            by_rank = (rng.value or {})["ranks"]
            is_same_world = len(by_rank) == self._ranks.world_size
            self._rng = by_rank[self._ranks.rank] if is_same_world else None

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Set the random numbers for the order of the epoch to those at the end of the previous
        one."""
        if self._is_between_epochs:
            self._restore_rng()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Make a save that is due, now that everything of the previous step is done."""
        self._restore_rng()
        if self._is_due:
            self._save(state, held)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Decide whether to save."""
        if self._ckpt is not None:
            self._is_due = self._ckpt.due(state.global_step)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Save the final state if the best model may be loaded in its place afterwards."""
        is_end = control.should_training_stop or state.global_step >= state.max_steps
        if is_end and args.load_best_model_at_end:
            self._save_end(state, held)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Save the final state, including the results of its evaluation."""
        if not (args.load_best_model_at_end and state.best_model_checkpoint):
            self._save_end(state, held)
        elif self._saved_step != state.global_step:
            logger.warning(
                "step %d, at which training stopped, is not saved, because the best model was "
                "loaded over it",
                state.global_step,
            )

    def _restore_rng(self) -> None:
        rng, self._rng = self._rng, None
        if rng is not None:
            rng_state.restore(rng)

    def _train_from(self, text: str | None, options: dict[str, Any]) -> Any:
        self._text = text
        assert self._trainer is not None
        if text is None:
            return self._trainer.train(**options)
        with TemporaryDirectory(prefix="hpckit-") as folder:
            Path(folder, _STATE_FILE).write_text(text, encoding="utf-8")
            return self._trainer.train(resume_from_checkpoint=folder, **options)

    def _save(
        self,
        state: TrainerState,
        held: dict[str, Any],
        *,
        is_between_epochs: bool = False,
        is_last: bool = False,
    ) -> None:
        assert self._ckpt is not None
        assert self._ranks is not None
        assert self._trainer is not None
        self._is_due = False
        self._trainer.store_flos()
        ranks = self._ranks.all_gather(rng_state.capture(), self._ranks.control)
        rng = ValueItem({"ranks": ranks, "is_between_epochs": is_between_epochs})
        whole = self._state(held, ValueItem({"state": state_text(self._trainer)}), rng)
        self._ckpt.save(state.global_step, whole, self._logged(state), is_last=is_last)
        self._saved_step = state.global_step

    def _save_end(self, state: TrainerState, held: dict[str, Any]) -> None:
        if self._ckpt is None:
            return
        if self._saved_step != state.global_step or not wait_for_save(self._ckpt):
            is_between = float(state.epoch or 0).is_integer()
            self._save(state, held, is_between_epochs=is_between, is_last=True)

    def _state(self, held: dict[str, Any], progress: ValueItem, rng: ValueItem) -> dict[str, Any]:
        optimizer = held["optimizer"]
        while hasattr(optimizer, "optimizer"):  # accelerate wraps torch's optimizer
            optimizer = optimizer.optimizer
        state = {
            "model": held["model"],
            "optimizer": optimizer,
            "scheduler": held["lr_scheduler"],
            "trainer": progress,
            "rng": rng,
        }
        assert self._trainer is not None
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        return state | ({"scaler": scaler} if scaler is not None and scaler.is_enabled() else {})

    def _logged(self, state: TrainerState) -> dict[str, float]:
        newest: dict[str, float] = {}
        for entry in state.log_history:
            newest |= {name: float(entry[name]) for name in self._metrics if name in entry}
        return newest

    def _forget(self) -> None:
        self._trainer = self._ckpt = self._ranks = None


class _RestartTraining(Exception):  # noqa: N818 - it is no error
    """The restored checkpoint is not the one with which training began: it is newer (from memory),
    or older (because the newest is damaged)."""

    def __init__(self, text: str | None) -> None:
        super().__init__("training starts again from the restored state")
        self.text = text


def _leave_to_checkpointer(folder: str, model: Any = None) -> None:
    """Replaces the Trainer's method that reads its own files; `on_train_begin` restores instead."""


def _check(trainer: Trainer) -> None:
    if not hasattr(trainer, _LOADS_MODEL):
        raise CheckpointError(f"this transformers' Trainer has no {_LOADS_MODEL}(): use version 5")
    if trainer.is_deepspeed_enabled:
        raise CheckpointError(
            "DeepSpeed keeps the state in its own format, which is not supported: use DDP or FSDP2"
        )
    plugin = trainer.accelerator.state.fsdp_plugin if trainer.is_fsdp_enabled else None
    if plugin is not None and plugin.fsdp_version == 1:
        raise CheckpointError(
            "FSDP1 keeps flat parameters in its own format, which is not supported: use FSDP2"
        )


def __getattr__(name: str) -> Any:
    """Returns what had another name in earlier releases."""
    if name == "CheckpointerCallback":
        warnings.warn(
            f"{__name__}.{name} is CheckpointerTrainerCallback now", FutureWarning, stacklevel=2
        )
        return CheckpointerTrainerCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
