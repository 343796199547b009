"""How far each source of a mixture has been read, and the loss of its tokens or samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from data import MixtureChange, SourceProgress
from hpckit.events.schema import Event, MixtureChanged, MixtureLogged

PREFIX = "loss/"
"""Prefix of the names under which the losses of sources are in step records."""


class MixedLoader(Protocol):
    """What tells how far the sources of a mixture have been read: a `StepSource`."""

    @property
    def sources(self) -> Sequence[SourceProgress]:
        """The progress of each source; empty without a mixture."""

    @property
    def mixture_change(self) -> MixtureChange | None:
        """How the weights have changed with the resume; None: they have not."""


class SourceMetrics:
    """The losses of the sources on one rank since the last record, and the events about them.

    Losses stay on their device until a record: no step waits for it.
    """

    def __init__(self, loader: MixedLoader, device: torch.device) -> None:
        self._loader = loader
        first = loader.sources
        self.names = tuple(source.name for source in first)
        self._weights = _weights(first)
        self._change = loader.mixture_change
        """The change by the resume, which has an event already: where documents are packed, it
        comes only with the next block. None: it has come, or there is none."""
        self._sums = torch.zeros(2, len(first), dtype=torch.float64, device=device)
        """The sum of the losses of each source, and their number."""

    def note(self, losses: Tensor, sources: Tensor) -> None:
        """Add the losses of tokens or samples; `sources` has the number of the source of each, and
        less than 0 for one that does not count."""
        if not self.names:
            return
        flat, numbers = losses.detach().reshape(-1).double(), sources.reshape(-1)
        counts = (numbers >= 0).to(flat.dtype)
        numbers = numbers.clamp(min=0).to(torch.int64)
        self._sums[0].index_add_(0, numbers, torch.where(counts > 0, flat, 0.0))
        self._sums[1].index_add_(0, numbers, counts)

    def take(self) -> list[float]:
        """Return the sums since the last call, for a sum over ranks."""
        if not self.names:
            return []
        found: list[float] = self._sums.reshape(-1).tolist()
        self._sums.zero_()
        return found

    def losses(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the mean loss of each source that has any, by name, from what `take` returned,
        summed over ranks."""
        counts = sums[len(self.names) :]
        each = zip(self.names, sums, counts, strict=False)
        return {name: total / count for name, total, count in each if count}

    def events(self, step: int, losses: dict[str, float]) -> list[Event]:
        """Return the events of the record of `step`: the progress of each source, and a change of
        weights by the plan since the last record."""
        if not self.names:
            return []
        now = self._loader.sources
        found: list[Event] = []
        weights = _weights(now)
        if weights != self._weights:
            if self._change is None or self._change.after != weights:
                found.append(
                    MixtureChanged(step=step, before=self._weights, after=weights, reason="stage")
                )
            self._weights, self._change = weights, None
        table = {source.name: _fields(source, losses.get(source.name)) for source in now}
        return [*found, MixtureLogged(step=step, sources=table)]


def _weights(sources: Sequence[SourceProgress]) -> dict[str, float]:
    return {source.name: source.weight for source in sources}


def _fields(source: SourceProgress, loss: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "weight": source.weight,
        "samples": source.samples,
        "epochs": source.epochs,
    }
    if source.tokens is not None:
        found["tokens"] = source.tokens
    return found if loss is None else {**found, "loss": loss}
