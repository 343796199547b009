"""A mixture of experts: many perceptrons, the experts, of which each token passes through a few.

Shazeer et al., "Outrageously Large Neural Networks" (2017); scores and gates as in DeepSeek-AI,
"DeepSeek-V3 Technical Report" (2024), section 2.1.2. Experts have no biases.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpckit.config.spec import ExpertsSpec
from hpckit.torch_internals import grouped_mm
from hpckit.trainer.models.token_dispatch import order_by, sort, unsort
from hpckit.trainer.parallel.local_tensor import local

_TINY = 1e-20  # keeps gates finite where all scores are zero


class MixtureOfExperts(nn.Module):
    """A layer in which each token passes through the experts with its highest scores, whose outputs
    are averaged by these scores."""

    def __init__(self, width: int, size: ExpertsSpec) -> None:
        super().__init__()
        self.router = Router(width, size)
        self.experts = Experts(size.count, width, size.hidden or 4 * width)
        self.exchange: Callable[[Experts, Tensor, Tensor], Tensor] = _compute_locally
        """The function that sends rows to the experts and their outputs back, with the arguments
        and the result of `Experts`."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer for `x`, (batch, time, width); the output has the same shape."""
        tokens = x.flatten(0, 1)
        chosen, gates = self.router(tokens)
        order = order_by(chosen.flatten(), len(self.router.bias))
        self.router.count(order.counts)
        rows = sort(tokens.repeat_interleave(chosen.shape[1], 0), order)
        out = unsort(self.exchange(self.experts, rows, order.counts), order)
        mixed = torch.bmm(gates[:, None].to(out.dtype), out.view(*chosen.shape, -1))
        return mixed.view_as(x)


class Router(nn.Module):
    """Scores the experts for each token, in fp32, which a stable choice needs (Fedus et al. 2021).

    Biases affect only the choice, and gates depend only on scores, so that balance needs no
    gradient (Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts",
    2024)."""

    bias: Tensor
    load: Tensor

    def __init__(self, width: int, size: ExpertsSpec) -> None:
        super().__init__()
        self.per_token = size.top_k
        self.weight = nn.Parameter(torch.empty(size.count, width))
        self.register_buffer("bias", torch.zeros(size.count, dtype=torch.float32))
        load = torch.zeros(size.count, dtype=torch.int64)  # tokens since the last update of biases
        self.register_buffer("load", load, persistent=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts of each of `tokens`, (tokens, width), and their gates; both are
        (tokens, experts per token). Several gates add up to 1; a single gate is the score itself,
        so that the score has a gradient."""
        scores = functional.linear(tokens.float(), self.weight.float()).sigmoid()
        chosen = (scores.detach() + self.bias).topk(self.per_token, sorted=False).indices
        gates = scores.gather(1, chosen)
        if self.per_token > 1:
            gates = gates / (gates.sum(1, keepdim=True) + _TINY)
        return chosen, gates

    def count(self, counts: Tensor) -> None:
        """Add the number of tokens of each expert, in training. Activation checkpointing counts all
        tokens twice, which does not change the balance."""
        if torch.is_grad_enabled():
            self.load += counts

    @torch.no_grad()
    def balance(self, load: Tensor, rate: float) -> None:
        """Move each bias by `rate` towards an equal load, and start counting from 0.

        Args:
            load: (experts,), the number of tokens of each expert on all ranks.
        """
        self.bias += rate * (load.sum() - load * len(load)).sign()
        self.load.zero_()


class Experts(nn.Module):
    """Two-layer perceptrons of one shape, whose weights are stacked."""

    def __init__(self, count: int, width: int, hidden: int) -> None:
        super().__init__()
        self.ranks = 1
        """Number of ranks whose tokens these experts compute."""
        self.up = nn.Parameter(torch.empty(count, hidden, width))
        self.down = nn.Parameter(torch.empty(count, width, hidden))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the outputs (rows, width) of `rows`, (rows, width), which are sorted by expert.

        Args:
            counts: (experts,), the number of rows of each expert.
        """
        ends = counts.cumsum(0, dtype=torch.int32)
        inner = grouped_mm(rows, self._local(self.up).mT, offs=ends)
        inner = functional.gelu(inner, approximate="tanh")
        return grouped_mm(inner, self._local(self.down).mT, offs=ends)

    def _local(self, weight: Tensor) -> Tensor:
        """Return this rank's part of `weight`, whose gradient is then the mean over `ranks`, as
        that of all other parameters."""
        found = local(weight)
        if self.ranks > 1 and found.requires_grad:
            found.register_hook(self._average)  # type: ignore[no-untyped-call]
        return found

    def _average(self, gradient: Tensor) -> Tensor:
        return gradient / self.ranks


def _compute_locally(experts: Experts, rows: Tensor, counts: Tensor) -> Tensor:
    """Compute the experts on a rank that has all of them, without any exchange."""
    out: Tensor = experts(rows, counts)
    return out
