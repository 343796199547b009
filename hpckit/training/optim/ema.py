"""An exponential moving average of parameters, and of moments of batch normalisation.

To evaluate with it:

    load({"model": model}, store, run=run, rename={"model/": "ema/"})
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hpckit.training.parallel.local import local


class Ema:
    """Average what is trained of a model, and what else it saves, by its names, spread as that is;
    begins with what it is now."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, decay: float) -> None:
        saved = model.state_dict().keys()
        buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        named = {**trained, **buffers}
        self._averages = {name: p.detach().clone() for name, p in named.items()}
        self._mine = [local(average) for average in self._averages.values()]
        self._parameters, self._decay = [*named.values()], decay

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
        """The averages themselves."""
        return self._averages

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the values over."""
        for name, average in self._averages.items():
            if state[name] is not average:
                average.copy_(state[name])


def build_ema(model: nn.Module, decay: float | None) -> Ema | None:
    """That of `optim.ema_decay`."""
    return None if decay is None else Ema(model, decay)
