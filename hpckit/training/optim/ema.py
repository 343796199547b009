"""An exponential moving average of parameters.

To evaluate with it:

    load({"model": model}, store, run=run, rename={"model/": "ema/"})
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hpckit.training.parallel.local import local


class Ema:
    """Average trained parameters by their names, spread as these are; begins with what they are
    now. Beside them are the model's buffers, not averaged, so that it can be loaded as a model."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, decay: float) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._averages = {name: p.detach().clone() for name, p in named.items()}
        self._mine = [local(average) for average in self._averages.values()]
        self._parameters, self._decay = [*named.values()], decay
        kept = model.state_dict().keys()
        self._buffers = {name: b for name, b in model.named_buffers() if name in kept}

    @torch.no_grad()
    def restart(self) -> None:
        """Begin once more with what the parameters are now."""
        for mine, parameter in zip(self._mine, self._parameters, strict=True):
            mine.copy_(local(parameter))

    @torch.no_grad()
    def update(self) -> None:
        """Take in the parameters after a step: decay x average + (1 - decay) x parameter."""
        parameters = [local(parameter) for parameter in self._parameters]
        torch._foreach_lerp_(self._mine, parameters, 1 - self._decay)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages themselves, and the model's own buffers."""
        return {**self._averages, **self._buffers}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the values over; a model has its buffers from its own state."""
        for name, average in self._averages.items():
            if state[name] is not average:
                average.copy_(state[name])


def build_ema(model: nn.Module, decay: float | None) -> Ema | None:
    """That of `optim.ema_decay`."""
    return None if decay is None else Ema(model, decay)
