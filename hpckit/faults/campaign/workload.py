"""The workload of a campaign: steps of a fixed duration, most of which is sleep, and faults that
only a worker can inject into itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from data import Batch, Loader
from hpckit.config.spec import RunSpec
from hpckit.faults.campaign.cured_reference import LEAVE_OUT, POISONED, WITHOUT_UPDATE
from hpckit.faults.campaign.fault_schedule import STEP_S
from hpckit.faults.injection.process_faults import SIGNALS, ProcessFault
from hpckit.trainer.language_model import main as train
from hpckit.trainer.run_loop import TrainingRun

_TOO_MUCH = 1 << 62  # bytes
_POISON, _LOSS = 1, 1e3
"""The token of which all of a poisoned sample consists, and the factor of its loss."""


def main(cfg: RunSpec) -> None:
    """Train as the language model does, with one step per `STEP_S` seconds; or, as the reference of
    a run that has left samples or updates out, without these and without pauses."""
    if LEAVE_OUT in cfg.user_config:
        _train_without(cfg.user_config[LEAVE_OUT], cfg.user_config[WITHOUT_UPDATE])
        train(cfg)
        return
    steps, faults = TrainingRun.steps, _Faults(cfg.heal.patience)

    def paced(self: TrainingRun, *given: Any, **named: Any) -> Iterator[Batch]:
        self.tracked["model"].register_forward_hook(_raise_poisoned_losses)
        begun_s = time.monotonic()
        for batch in steps(self, *given, **named):
            faults.play(self, batch)
            yield batch
            time.sleep(max(0.0, begun_s + STEP_S - time.monotonic()))
            begun_s = time.monotonic()

    TrainingRun.steps = paced  # type: ignore[assignment, method-assign]
    train(cfg)


def _train_without(leave_out: Sequence[Sequence[int]], without_update: Sequence[int]) -> None:
    """Have the run of this process never get the samples of these positions, and make no update in
    these steps."""
    steps = TrainingRun.steps

    def without_samples(self: TrainingRun, loader: Any, *given: Any, **named: Any) -> Any:
        assert isinstance(loader, Loader)
        for first, end in leave_out:
            loader.skip(first, end)
        return steps(self, loader, *given, **named)

    def should_update(self: TrainingRun, **_: Any) -> bool:
        return self.step + 1 not in without_update

    TrainingRun.steps = without_samples  # type: ignore[method-assign]
    TrainingRun.should_update = should_update  # type: ignore[method-assign]


class _Faults:
    """The faults that were requested from this worker by signals, until the next step."""

    def __init__(self, patience: int) -> None:
        """
        Args:
            patience: number of steps in a row whose samples are poisoned.
        """
        self._due: set[ProcessFault] = set()
        self._patience, self._poisonings = patience, 0
        for number in SIGNALS.values():
            signal.signal(number, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._due |= {fault for fault, known in SIGNALS.items() if known == number}

    def play(self, run: TrainingRun, batch: Batch) -> None:
        """Inject the requested faults.

        Args:
            batch: of the step that begins.

        Raises:
            MemoryError: a real one.
        """
        due, self._due = self._due, set()
        if ProcessFault.NAN in due:
            _set_nan(run.tracked["model"])
        if ProcessFault.MEMORY in due:
            bytearray(_TOO_MUCH)
        if ProcessFault.WRONG in due:
            _compute_wrongly(run.tracked["model"])
        if ProcessFault.SPIKE in due:
            self._poisonings = self._patience
        if self._poisonings:
            self._poisonings -= 1
            batch.data.tokens.fill_(_POISON)
            positions = list(batch.positions)
            run._context.events.emit_kind(POISONED, step=run.step + 1, positions=positions)
        while ProcessFault.STALL in due:
            time.sleep(1.0)


def _raise_poisoned_losses(
    _: torch.nn.Module, given: Sequence[torch.Tensor], losses: torch.Tensor
) -> torch.Tensor:
    """Multiply the losses of poisoned samples: a function of the samples alone, so that every rank
    computes the same of them."""
    is_poisoned = (given[0] == _POISON).all(dim=1, keepdim=True)
    return torch.where(is_poisoned, losses * _LOSS, losses) if is_poisoned.any() else losses


def _set_nan(model: torch.nn.Module) -> None:
    """Set one of this rank's elements to NaN."""
    with torch.no_grad():
        for parameter in model.parameters():
            local = getattr(parameter, "to_local", lambda whole=parameter: whole)()
            if local.numel():
                local.view(-1)[0] = float("nan")
                return


def _compute_wrongly(model: torch.nn.Module) -> None:
    """Have one product of a weight be wrong by a sixteenth from now on, as a bit of it may be."""
    layer = next(one for one in model.modules() if isinstance(one, torch.nn.Linear))

    def distort(_: torch.nn.Module, given: object, product: torch.Tensor) -> torch.Tensor:
        wrong = product.clone()
        wrong[..., -1] *= 1.0625
        return wrong

    layer.register_forward_hook(distort)
