"""A callback for Hugging Face's `Trainer` under `hpckit launch`.

    trainer = Trainer(model, args, ..., callbacks=[HpckitTrainerCallback()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))

With the Checkpointer in place of the Trainer's own checkpoints:

    saver = CheckpointerTrainerCallback(root, run="gpt", every=Minutes(10))
    trainer = Trainer(model, args, ..., callbacks=[HpckitTrainerCallback(saver)])
    saver.train(trainer)
"""

from __future__ import annotations

import json
import logging
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from transformers import (  # type: ignore[import-not-found, unused-ignore]
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
except ImportError as error:
    raise ImportError(
        "hpckit.integrations.huggingface needs transformers 5 or newer, and accelerate: "
        "pip install transformers accelerate"
    ) from error

from checkpointing.integrations.huggingface import CheckpointerTrainerCallback
from hpckit import client
from hpckit.integrations.open_phase import OpenPhase

log = logging.getLogger(__name__)

_LOGGED = {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm"}
"""Metrics of the Trainer's log, and their names in hpckit."""


class HpckitTrainerCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Reports steps, evaluations and checkpoints to hpckit, and leaves when hpckit asks for it.

    All ranks leave after the same step. The Trainer first makes the evaluation that is due after
    the step, then saves. Then `train` ends the program with exit status 0 in place of returning,
    so that what follows it, such as an export, is left to the generation that finishes the
    training. Outside hpckit the callback does nothing.

    Args:
        saver: the CheckpointerTrainerCallback that saves this trainer; None: the Trainer saves
            itself.
    """

    def __init__(self, saver: CheckpointerTrainerCallback | None = None) -> None:
        self._saver = saver
        self._phase = OpenPhase()
        self._is_leaving = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Start again, as one callback may serve several calls of `train`."""
        self._is_leaving = False

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Everything of the previous step is done."""
        self._phase.leave()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Report the step, unless its log follows, and decide whether to leave."""
        if not control.should_log:
            client.step(state.global_step)
        is_end = control.should_training_stop or state.global_step >= state.max_steps
        if not is_end and client.should_stop():
            self._leave(args, state, control)
        self._enter_next(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Leave out what belongs to the end of an epoch if training was stopped within it."""
        if self._is_leaving:
            is_over = _is_epoch_over(state)
            control.should_save = is_over and self._saver is None
            control.should_evaluate = control.should_evaluate and is_over
            self._save_in_any_case(args, control)
        self._enter_next(control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **held: Any,
    ) -> None:
        """Report the step that the Trainer logs."""
        if logs is not None and "loss" in logs:
            found = {name: logs[key] for key, name in _LOGGED.items() if key in logs}
            client.step(state.global_step, **found)
            self._enter_next(control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Report that another batch of the evaluation is done."""
        self._phase.enter(client.validating())

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """The evaluation is over; a save may follow."""
        self._phase.leave()
        if control.should_save:
            self._phase.enter(client.saving())

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *_: Any,
        **held: Any,
    ) -> None:
        """The prediction is over."""
        self._phase.leave()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Report the checkpoint that the Trainer has written."""
        self._phase.leave()
        client.checkpointed(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """End the program if it was asked to leave."""
        self._phase.leave()
        if not self._is_leaving:
            client.finished()
            return
        if self._saver is not None:
            with client.saving():
                self._saver.on_train_end(args, state, control, **held)
                self._saver.finish()
        log.info("training stops after step %d, as it was asked to", state.global_step)
        raise SystemExit(0)

    def _leave(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        self._is_leaving = True
        control.should_training_stop = True
        if self._saver is None and not _is_epoch_over(state):
            control.should_save = True
            self._save_in_any_case(args, control)

    def _save_in_any_case(self, args: TrainingArguments, control: TrainerControl) -> None:
        """Leaves out an evaluation that would decide whether the Trainer saves."""
        if control.should_save and control.should_evaluate and args.save_strategy == "best":
            control.should_evaluate = False
            log.warning("the evaluation after this step is left out, so that it is saved")

    def _enter_next(self, control: TrainerControl) -> None:
        """Reports what the Trainer does next."""
        if control.should_evaluate:
            self._phase.enter(client.validating())
        elif control.should_save:
            self._phase.enter(client.saving())


def newest_checkpoint(output_dir: str | os.PathLike[str] | None) -> str | None:
    """Returns the folder of the Trainer's newest checkpoint that is complete, or None if there is
    none. A process that was killed while it saved leaves a folder that cannot be resumed from, and
    which `transformers.trainer_utils.get_last_checkpoint` returns.

    Args:
        output_dir: the `output_dir` of the TrainingArguments.
    """
    found: list[tuple[int, Path]] = []
    for path in Path(output_dir or ".").glob("checkpoint-*"):
        number = path.name.rpartition("-")[2]
        if number.isdigit() and path.is_dir():
            found.append((int(number), path))
    for _, path in sorted(found, reverse=True):
        if _is_complete(path):
            return str(path)
        log.warning("%s is incomplete, and is skipped", path)
    return None


def _is_complete(folder: Path) -> bool:
    """Returns whether the Trainer has written all of a checkpoint. It writes trainer_state.json
    last; other ranks may still be writing their files then."""
    try:
        json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return all(zipfile.is_zipfile(path) for path in folder.glob("*.pth"))


def _is_epoch_over(state: TrainerState) -> bool:
    return float(state.epoch or 0).is_integer()


def __getattr__(name: str) -> Any:
    """Returns what had another name in earlier releases."""
    if name == "HpckitCallback":
        warnings.warn(
            f"{__name__}.{name} is HpckitTrainerCallback now", FutureWarning, stacklevel=2
        )
        return HpckitTrainerCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
