"""Metrics of steps: averaged over ranks, into the event log and TensorBoard files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from hpckit.run.events import EventLog

Value = float | int | Tensor
TOKENS = "tokens"
"""Name of the metric that is a rank's count of tokens; it is summed and becomes `tokens_per_s`."""


class Metrics:
    """Collects what is logged in a step and writes every `every`-th step down.

    Tensors stay on their device until then: between two records no step waits for the device.
    """

    def __init__(self, events: EventLog, tensorboard: Path | None, every: int, at: int) -> None:
        """`tensorboard`: folder for rank 0's files, None on other ranks; `at`: steps finished."""
        self._events = events
        self._writer = SummaryWriter(str(tensorboard), purge_step=at + 1) if tensorboard else None
        self._every = every
        self._step_values: dict[str, Value] = {}
        self._tokens = 0.0
        self._waited = 0.0
        self._stalled = 0.0
        self._since = (at, time.monotonic())
        self.newest: dict[str, float] = {}
        """What was logged, averaged over ranks, of the newest step that was written down."""

    def log(self, values: Mapping[str, Value]) -> None:
        """Values of the step under way; a later value replaces an earlier one."""
        self._step_values.update(values)

    def waited(self, data_s: float = 0.0, checkpoint_s: float = 0.0) -> None:
        """Seconds in which the step under way did nothing but wait."""
        self._waited += data_s
        self._stalled += checkpoint_s

    def end_step(self, step: int, last: bool) -> None:
        """Steps up to `step` are finished; writes the record if one is due.

        Collective when a record is due: every rank has to call it for the same steps.
        """
        self._tokens += float(self._step_values.pop(TOKENS, 0))
        if step % self._every and not last:
            return
        begun, since = self._since
        now = time.monotonic()
        values = self._over_ranks()
        tokens = values.pop(TOKENS)
        self.newest = dict(values)
        steps = step - begun
        record = {
            **values,
            **({"tokens_per_s": tokens / (now - since)} if tokens else {}),
            "step_s": (now - since) / steps,
            "data_wait_s": self._waited / steps,
            "checkpoint_stall_s": self._stalled / steps,
        }
        self._since, self._tokens, self._waited, self._stalled = (step, now), 0.0, 0.0, 0.0
        self._write(step, record)

    def _over_ranks(self) -> dict[str, float]:
        """Means over all ranks of this step's values, and the sum of the tokens since the last."""
        names = sorted(self._step_values)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        flat = [torch.as_tensor(self._step_values[name]).detach() for name in names]
        packed = torch.stack(
            [value.to(device, torch.float64).reshape(()) for value in flat]
            + [torch.tensor(self._tokens, dtype=torch.float64, device=device)]
        )
        dist.all_reduce(packed)
        *sums, tokens = packed.tolist()
        world = dist.get_world_size()
        return {**{n: s / world for n, s in zip(names, sums, strict=True)}, TOKENS: tokens}

    def _write(self, step: int, record: Mapping[str, float]) -> None:
        if self._writer is None:
            return
        self._events.emit("step", step=step, **record)
        for name, value in record.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write out what is buffered."""
        if self._writer is not None:
            self._writer.close()
