"""An exponential moving average of parameters, and of moments of batch normalisation.

To evaluate with it:

    load({"model": model}, store, run=run, rename={"model/": "ema/"})
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from checkpointing import StructureError
from hpckit.torch_internals import foreach_lerp_
from hpckit.trainer.parallel.local_tensor import local

log = logging.getLogger(__name__)


class Ema:
    """The exponential moving average of the trained parameters and the saved buffers of a model, by
    their names and with their sharding. It starts at their present values.

    Averages are in fp32 at least, since 0.1 % of a difference, added to a number of bf16, most
    often rounds back to the same number.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, decay: float) -> None:
        saved = model.state_dict().keys()
        buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        named = {**trained, **buffers}
        self._averages = {
            name: p.detach().to(_average_dtype(p), copy=True) for name, p in named.items()
        }
        self._local_averages = [local(average) for average in self._averages.values()]
        self._parameters, self._decay = [*named.values()], decay
        self._narrow: dict[str, Tensor] | None = None

    @torch.no_grad()
    def restart(self) -> None:
        """Set the averages to the present values of the parameters."""
        for average, parameter in zip(self._local_averages, self._parameters, strict=True):
            average.copy_(local(parameter))

    @torch.no_grad()
    def update(self) -> None:
        """Update the averages after a step: decay x average + (1 - decay) x parameter."""
        pairs = [*zip(self._local_averages, map(local, self._parameters), strict=True)]
        same_dtype = [(average, p) for average, p in pairs if average.dtype == p.dtype]
        if same_dtype:
            averages, parameters = zip(*same_dtype, strict=True)
            foreach_lerp_(averages, parameters, 1 - self._decay)
        for average, parameter in pairs:
            if average.dtype != parameter.dtype:  # lerp needs one dtype
                average.mul_(self._decay).add_(parameter, alpha=1 - self._decay)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages."""
        return self._averages if self._narrow is None else self._narrow

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the averages."""
        for name, average in self._averages.items():
            if state[name] is not average:
                average.copy_(state[name])

    def narrow(self) -> bool:
        """Have `state_dict` return tensors in the dtypes of the parameters, until `widen`, and
        return whether any of these differs from that of its average."""
        named = zip(self._averages.items(), self._parameters, strict=True)
        self._narrow = {name: average.to(p.dtype) for (name, average), p in named}
        return any(self._narrow[name].dtype != one.dtype for name, one in self._averages.items())

    def widen(self) -> None:
        """Undo `narrow`."""
        self._narrow = None


def build_ema(model: nn.Module, decay: float | None) -> Ema | None:
    """Return the average for `optim.ema_decay`; None if that is not set."""
    return None if decay is None else Ema(model, decay)


def with_narrow_averages(
    restore: Callable[[dict[str, Any]], int | None], state: dict[str, Any]
) -> int | None:
    """Call `restore` for `state`, and once more with averages in the dtypes of the parameters,
    which checkpoints of earlier releases have.

    Raises: as the first call of `restore`.
    """
    averages = [one for one in state.values() if isinstance(one, Ema)]
    try:
        return restore(state)
    except StructureError as error:
        were_narrow = [average.narrow() for average in averages]
        if not any(were_narrow):
            raise
        try:
            step = restore(state)
        except StructureError:
            raise error from None
        log.warning("the averages were saved in the dtypes of the parameters, and are fp32 now")
        return step
    finally:
        for average in averages:
            average.widen()


def _average_dtype(parameter: Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)
