"""The workload of a campaign: steps of a fixed duration, most of which is sleep, and faults that
only a worker can inject into itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from data import Batch
from hpckit.config.spec import RunSpec
from hpckit.faults.campaign.fault_schedule import STEP_S
from hpckit.faults.injection.process_faults import SIGNALS, ProcessFault
from hpckit.trainer.language_model import main as train
from hpckit.trainer.run_loop import TrainingRun

_TOO_MUCH = 1 << 62  # bytes


def main(cfg: RunSpec) -> None:
    """Train as the language model does, with one step per `STEP_S` seconds."""
    steps, faults = TrainingRun.steps, _Faults()

    def paced(self: TrainingRun, *given: Any, **named: Any) -> Iterator[Batch]:
        begun_s = time.monotonic()
        for batch in steps(self, *given, **named):
            faults.play(self)
            yield batch
            time.sleep(max(0.0, begun_s + STEP_S - time.monotonic()))
            begun_s = time.monotonic()

    TrainingRun.steps = paced  # type: ignore[assignment, method-assign]
    train(cfg)


class _Faults:
    """The faults that were requested from this worker by signals, until the next step."""

    def __init__(self) -> None:
        self._due: set[ProcessFault] = set()
        for number in SIGNALS.values():
            signal.signal(number, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._due |= {fault for fault, known in SIGNALS.items() if known == number}

    def play(self, run: TrainingRun) -> None:
        """Inject the requested faults.

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
        while ProcessFault.STALL in due:
            time.sleep(1.0)


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
