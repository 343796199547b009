"""The canary (`debug.canary`), which compares the first steps of a run with recorded ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hpckit.config.canary_record import (
    NAMES,
    CanaryRecord,
    Values,
    difference,
    identity_of,
    read_golden,
    relative,
)
from hpckit.config.spec import RunSpec
from hpckit.trainer.errors import TrainingError

log = logging.getLogger(__name__)


class CanaryError(TrainingError):
    """A step differs from the recorded one; another attempt would differ in the same way."""


class Canary:
    """Compares or records the metrics of each step, on every rank. They are also its state, so that
    a canary can be resumed."""

    def __init__(self, spec: RunSpec, world_size: int, device: torch.device) -> None:
        canary = spec.debug.canary
        assert canary.file is not None
        self._spec, self._path, self._tolerance = spec, Path(canary.file), canary.tolerance
        self._origin = torch.__version__, world_size, _name(device)
        self._golden = self._read() if canary.mode == "check" else None
        self._seen: list[Values] = []

    def check_step(self, step: int, values: Mapping[str, float]) -> None:
        """Check or record the metrics of step `step` (from 1), averaged over ranks.

        Raises:
            CanaryError: they differ from the recorded ones.
            TrainingError: the training function logs no metric that the canary compares.
        """
        seen = {name: values[name] for name in NAMES if name in values}
        if not seen:
            raise TrainingError(f"debug.canary: give {' or '.join(NAMES)} to run.log in every step")
        self._seen.append(seen)
        if self._golden is None:
            return
        if found := difference(self._golden.steps, step, seen, self._tolerance):
            raise CanaryError(
                f"{found}, with debug.canary.tolerance={self._tolerance:g} "
                f"({self._path}: {self._golden.origin}; here: {self._result().origin})"
            )

    def end(self, *, is_first: bool) -> dict[str, Any]:
        """End after the last step and return the fields of an event. In the mode "record", the rank
        with `is_first` writes the record."""
        if self._golden is None:
            if is_first:
                self._result().write(self._path)
            fields: dict[str, Any] = {"recorded": str(self._path)}
        else:
            pairs = zip(self._seen, self._golden.steps, strict=False)
            largest = max(relative(seen[n], was[n]) for seen, was in pairs for n in seen)
            fields = {"checked": str(self._path), "largest_difference": largest}
        log.info("canary: %d steps, %s", len(self._seen), fields)
        return {"steps": len(self._seen), **fields}

    def state_dict(self) -> dict[str, Any]:
        """Return the metrics of the steps so far."""
        return {"seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the steps of a saved state."""
        self._seen = [dict(values) for values in state["seen"]]

    def _read(self) -> CanaryRecord:
        try:
            return read_golden(self._path)
        except ValueError as error:
            raise TrainingError(f"debug.canary.file: {error}") from None

    def _result(self) -> CanaryRecord:
        return CanaryRecord(identity_of(self._spec), *self._origin, self._seen)


def build_canary(spec: RunSpec, world_size: int, device: torch.device) -> Canary | None:
    """Return the canary for `debug.canary`; None if no mode is set."""
    return None if spec.debug.canary.mode is None else Canary(spec, world_size, device)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
