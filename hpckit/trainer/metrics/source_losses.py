"""The losses that a training function of hpckit computes in the micro-batches of a step, with the
source of each token or sample."""

from __future__ import annotations

import torch
from torch import Tensor


class SourceLosses:
    """Collects the losses of the micro-batches of each step, in their order.

    What is computed beside the samples of a step, as for a certificate, is not collected.
    """

    def __init__(self) -> None:
        self._sources: Tensor | None = None
        self._losses: list[Tensor] = []
        self._left = 0

    def begin(self, sources: Tensor | None) -> None:
        """Begin a step whose samples are of these sources, (local batch, ...); None: there is no
        mixture, and nothing is collected."""
        self._sources, self._losses = sources, []
        self._left = 0 if sources is None else len(sources)

    def note(self, losses: Tensor) -> None:
        """Collect the losses of the next samples, (samples, ...)."""
        if self._left >= len(losses):
            self._losses.append(losses.detach())
            self._left -= len(losses)

    def take(self) -> tuple[Tensor, Tensor] | None:
        """Return the losses of the step and their sources; None if this rank has none, as in all
        stages of a pipeline but the last one."""
        losses, sources = self._losses, self._sources
        self._losses, self._left = [], 0
        if sources is None or not losses:
            return None
        found = torch.cat(losses)
        return found, sources[: len(found)]


def source_of_targets(
    sources: Tensor | None, targets: Tensor, datasets: tuple[int, ...], padding: int
) -> Tensor:
    """Return the number of the source of each target, (batch, time), -1 for padding.

    Args:
        sources: (batch, time + 1) of the tokens of packed documents; None: each row is a sample.
        datasets: the source of each row, if it is a sample.
    """
    if sources is None:
        rows = torch.tensor(datasets, device=targets.device)
        numbers = rows[:, None].expand_as(targets)
    else:
        numbers = sources[:, 1:]
    return torch.where(targets == padding, -1, numbers)
