"""Metrics of steps: averaged over ranks, into the event log and TensorBoard files."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from hpckit.run.events import EventLog
from hpckit.training import intake
from hpckit.training.errors import TrainingError
from hpckit.training.intake import Intake
from hpckit.training.scalars import Scalars

Value = float | int | Tensor
TOKENS = "tokens"
"""Name of the metric that is a rank's count of tokens; it is summed and becomes `tokens_per_s`."""

RESERVED = frozenset(
    (
        *("time", "kind", "step", "generation", "attempt", "node", "rank", "submission"),
        *("tokens_per_s", "step_s", "data_wait_s", "checkpoint_stall_s"),
        *intake.NAMES,
    )
)
"""Names that a record of a step has anyway."""


class Metrics:
    """Collects what is logged in a step and writes every `every`-th step down.

    Tensors stay on their device until then: between two records no step waits for the device.
    """

    def __init__(
        self,
        events: EventLog,
        tensorboard: Path | None,
        every: int,
        at: int,
        taken: Intake,
        copies: int = 1,
    ) -> None:
        """
        Args:
            tensorboard: folder for rank 0's files, None on other ranks.
            at: steps finished.
            copies: ranks that take the same samples each.
        """
        self._copies = copies
        self._events = events
        self._intake, self._told = taken, intake.Told()
        self._scalars = Scalars(tensorboard, events, at) if tensorboard else None
        self._every = every
        self._step_values: dict[str, Value] = {}
        self._tokens = 0.0
        self._waited = 0.0
        self._stalled = 0.0
        self._since = (at, time.monotonic())
        self.newest: dict[str, float] = {}
        """What was logged, averaged over ranks, of the newest step that was written down."""

    def log(self, values: Mapping[str, Value]) -> None:
        """Values of the step under way; a later value replaces an earlier one.

        Raises:
            TrainingError: a name that records use themselves, or a value that is no real number.
        """
        for name, value in values.items():
            if problem := _problem(name, value):
                raise TrainingError(f"run.log({name}=...): {problem}")
        self._step_values.update(values)

    def waited(self, data_s: float = 0.0, checkpoint_s: float = 0.0) -> None:
        """Seconds in which the step under way did nothing but wait."""
        self._waited += data_s
        self._stalled += checkpoint_s

    def end_step(self, step: int, last: bool) -> None:
        """Steps up to `step` are finished; writes the record if one is due.

        Collective when a record is due: every rank has to call it for the same steps.
        """
        logged, self._step_values = self._step_values, {}
        self._tokens += float(logged.pop(TOKENS, 0))
        if step % self._every and not last:
            return
        begun, since = self._since
        now = time.monotonic()
        values, tokens, taken = self._over_ranks(logged)
        self.newest = dict(values)
        steps = step - begun
        record = {
            **values,
            **({"tokens_per_s": tokens / (now - since)} if tokens else {}),
            **intake.record_of(taken, dist.get_world_size(), now - since),
            "step_s": (now - since) / steps,
            "data_wait_s": self._waited / steps,
            "checkpoint_stall_s": self._stalled / steps,
        }
        self._since, self._tokens, self._waited, self._stalled = (step, now), 0.0, 0.0, 0.0
        self._write(step, record)
        news = self._told.news(taken, now - since)
        if news and self._scalars is not None:
            self._events.emit("data_bound", step=step, **news)

    def _over_ranks(
        self, logged: Mapping[str, Value]
    ) -> tuple[dict[str, float], float, Sequence[float]]:
        """Means over all ranks of `logged`; the sums of the tokens and of what the loaders did
        since the last record."""
        names = sorted(logged)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        _require_same_names(names, device)
        flat = [torch.as_tensor(logged[name]).detach() for name in names]
        counted = torch.tensor([self._tokens, *self._intake.taken()], dtype=torch.float64)
        packed = torch.cat(
            [each.to(device, torch.float64).reshape(-1) for each in (*flat, counted)]
        )
        dist.all_reduce(packed)
        sums = packed.tolist()
        tokens, *taken = sums[len(names) :]
        world = dist.get_world_size()
        means = {name: total / world for name, total in zip(names, sums, strict=False)}
        return means, tokens / self._copies, taken

    def _write(self, step: int, record: Mapping[str, float]) -> None:
        if self._scalars is not None:
            self._events.emit("step", step=step, **record)
            self._scalars.write(step, record)

    def close(self) -> None:
        """Write out what is buffered."""
        if self._scalars is not None:
            self._scalars.close()


def _problem(name: str, value: object) -> str | None:
    """Why `value` cannot be a metric called `name`; None if it can."""
    if name in RESERVED:
        return "hpckit's own records use this name; choose another"
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            return f"needs one real number, got a tensor of {tuple(value.shape)} {value.dtype}"
    elif not isinstance(value, int | float):
        return f"needs a number, got {value!r}"
    return None


def _require_same_names(names: Sequence[str], device: str) -> None:
    """Collective.

    Raises:
        TrainingError: on every rank, if not all ranks logged the same names.
    """
    digest = zlib.crc32(json.dumps(names).encode())
    extremes = torch.tensor([digest, -digest], dtype=torch.int64, device=device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    highest, lowest = extremes.tolist()
    if highest != -lowest:
        raise TrainingError(
            f"run.log: ranks logged different metrics in one step, this one {names}; "
            "log the same names on every rank"
        )
