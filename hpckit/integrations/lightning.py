"""A callback and a cluster environment for Lightning under `hpckit launch`.

    trainer = L.Trainer(
        **trainer_options(),
        strategy="ddp",
        callbacks=[HpckitCallback(), ModelCheckpoint(dirpath=folder, save_last=True)],
    )
    trainer.fit(module, loader, ckpt_path="last")

With the Checkpointer, which also resumes within an epoch, in place of Lightning's checkpoints:

    saver = CheckpointerCallback(root, run="gpt", every=Minutes(10))
    trainer = L.Trainer(**trainer_options(), strategy="ddp", callbacks=[HpckitCallback(), saver])
    trainer.fit(module, loader)
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

try:
    import lightning.pytorch as L  # type: ignore[import-not-found, unused-ignore] # noqa: N812
    from lightning.fabric.plugins.environments import (  # type: ignore[import-not-found, attr-defined, unused-ignore]
        TorchElasticEnvironment,
    )
    from lightning.pytorch.callbacks import (  # type: ignore[import-not-found, unused-ignore]
        Callback,
        ModelCheckpoint,
    )
except ImportError as error:
    raise ImportError(
        "hpckit.integrations.lightning needs Lightning 2.6 or newer: pip install lightning"
    ) from error

from checkpointing.integrations.lightning import CheckpointerCallback
from hpckit import client
from hpckit.integrations.open_phase import OpenPhase

log = logging.getLogger(__name__)

STOP_FILE = "last-stop.ckpt"
"""The checkpoint with which a program leaves, beside those of ModelCheckpoint. For Lightning it is
one of those among which `ckpt_path="last"` takes the newest."""


class HpckitEnvironment(TorchElasticEnvironment):  # type: ignore[misc, unused-ignore]
    """The ranks and addresses of a program that hpckit has started.

    Given as a plugin, it wins over what Lightning detects. Lightning's environment for Slurm would
    expect one `srun` task per rank, and at SIGUSR1 it would requeue the job itself.
    """

    def __init__(self) -> None:
        if not client.is_launched():
            raise RuntimeError(
                "HpckitEnvironment: hpckit has not started this process; L.Trainer("
                "**trainer_options()) takes the environment only where there is one"
            )
        super().__init__()

    @staticmethod
    def detect() -> bool:
        """Returns whether hpckit has started this process."""
        return client.is_launched()

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """
        Raises:
            ValueError: the Trainer's numbers of devices and nodes are not those of the launch.
        """
        devices, nodes = _devices(), _nodes()
        if (num_devices, num_nodes) != (devices, nodes):
            raise ValueError(
                f"Trainer(devices={num_devices}, num_nodes={num_nodes}): hpckit has started "
                f"{devices} processes on each of {nodes} {'node' if nodes == 1 else 'nodes'}; "
                "write L.Trainer(**trainer_options(), ...), as the number of nodes may change "
                "while a run lasts"
            )


def trainer_options() -> dict[str, Any]:
    """Returns the options of a Lightning Trainer that say where it runs: `devices`, `num_nodes` and
    `plugins`. Where hpckit has not started this process, there are none."""
    if not client.is_launched():
        return {}
    return {"devices": _devices(), "num_nodes": _nodes(), "plugins": [HpckitEnvironment()]}


def _devices() -> int:
    return int(os.environ["LOCAL_WORLD_SIZE"])


def _nodes() -> int:
    return int(os.environ["WORLD_SIZE"]) // _devices()


class HpckitCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Reports steps, validations and checkpoints to hpckit, and leaves when hpckit asks for it.

    All ranks leave after the same step of the optimizer. Until then nothing differs from a training
    that nobody interrupts: a validation that is due is made, and one that is not due is not, unlike
    after `trainer.should_stop`. With a CheckpointerCallback the step is saved by it; else it is
    saved as `last-stop.ckpt` in the folder of the ModelCheckpoint. Then `fit` ends the program with
    exit status 0 in place of returning. Outside hpckit the callback does nothing.
    """

    def __init__(self) -> None:
        self._phase = OpenPhase()
        self._saver: CheckpointerCallback | None = None
        self._seen_step = -1
        self._written_step: int | None = None  # of the checkpoint that Lightning is writing
        self._is_leaving = False
        self._at_sigterm: Any = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Find the callback that saves this trainer's checkpoints."""
        if not client.is_launched() or stage != "fit":
            return
        self._at_sigterm = signal.getsignal(signal.SIGTERM)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined, unused-ignore]
        savers = (c for c in callbacks if isinstance(c, CheckpointerCallback))
        self._saver = next(savers, None)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take note of the step that was restored."""
        self._restore_sigterm()
        self._seen_step, self._is_leaving = trainer.global_step, False
        if client.is_launched() and self._saver is None and _folder(trainer) is None:
            log.warning(
                "nothing saves this training: give the Trainer a CheckpointerCallback, or a "
                'ModelCheckpoint(dirpath=..., save_last=True) and fit(ckpt_path="last")'
            )

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Everything of the previous batch is done."""
        self._report_written()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Report the step, and decide whether to leave."""
        if self._is_leaving:
            self._end_after_save()
        step = trainer.global_step
        if step == self._seen_step:  # gradients are being accumulated
            return
        self._seen_step = step
        client.step(step, **_loss_of(outputs))
        if trainer.should_stop or _is_last_step(trainer) or not client.should_stop():
            return
        if self._saver is None:
            self._save(trainer)
            _end(step)
        self._saver.save_next()
        self._is_leaving = True

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Report the validation."""
        self._report_written()
        self._phase.enter(client.validating())

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **held: Any
    ) -> None:
        """Report that another batch of the validation is done."""
        self._phase.enter(client.validating())

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The validation is over."""
        self._phase.leave()

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Report that Lightning writes a checkpoint, which is done before the next batch."""
        self._report_written()
        self._written_step = trainer.global_step
        self._phase.enter(client.saving())

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Training is over."""
        self._report_written()
        client.finished()

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Report the last checkpoint."""
        self._report_written()

    def _restore_sigterm(self) -> None:
        """Replaces Lightning's handler of SIGTERM, which runs a collective inside the handler and
        ends training without a save, by the one before it."""
        handler, self._at_sigterm = self._at_sigterm, None
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)

    def _report_written(self) -> None:
        self._phase.leave()
        step, self._written_step = self._written_step, None
        if step is not None:
            client.checkpointed(step)

    def _save(self, trainer: L.Trainer) -> None:
        folder = _folder(trainer)
        if folder is None:
            return
        trainer.save_checkpoint(folder / STOP_FILE)
        self._report_written()

    def _end_after_save(self) -> None:
        """Ends the program. The saver has saved the previous step when this batch began."""
        assert self._saver is not None
        with client.saving():
            self._saver.finish()
        _end(self._seen_step)


def _end(step: int) -> NoReturn:
    log.info("training stops after step %d, and the program ends, as it was asked to", step)
    raise SystemExit(0)


def _folder(trainer: L.Trainer) -> Path | None:
    """Returns the folder of the checkpoints that `ckpt_path="last"` looks at."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None:
            return Path(callback.dirpath)
    return None


def _loss_of(outputs: Any) -> dict[str, Any]:
    """Returns the loss of this rank, if `training_step` has returned one."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return {} if loss is None else {"loss": loss}


def _is_last_step(trainer: L.Trainer) -> bool:
    """Returns whether training ends after this step by itself."""
    if trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps:
        return True
    epochs = trainer.max_epochs
    is_last_epoch = epochs is not None and epochs != -1 and trainer.current_epoch + 1 >= epochs
    return bool(is_last_epoch and trainer.is_last_batch)
