"""Expert parallelism: tokens are sent to the ranks of their experts, and back.

Lepikhin et al., "GShard" (2021), without a limit on the tokens of an expert.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from hpckit.trainer.models.mixture_of_experts import Experts, MixtureOfExperts, Router
from hpckit.trainer.models.token_dispatch import order_by, sort, unsort


def share_experts(model: nn.Module, mesh: DeviceMesh) -> list[Experts]:
    """Give each rank of `mesh`, which has one dimension, its part of the experts of each layer of
    `model`, in place."""
    found = []
    for layer in model.modules():
        if isinstance(layer, MixtureOfExperts):
            layer.across = TokenExchange(mesh)
            experts = layer.experts
            for name, stack in list(experts.named_parameters()):
                spread = distribute_tensor(stack, mesh, [Shard(0)], src_data_rank=None)
                experts.register_parameter(name, nn.Parameter(spread))
            experts.ranks = mesh.size()
            found.append(experts)
    return found


class TokenExchange:
    """The exchange of rows between ranks that have consecutive experts each. Its calls are
    collectives."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._group, self._ranks = mesh.get_group(), mesh.size()

    def __call__(self, experts: Experts, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the outputs of `experts`, which are spread over the ranks, for this rank's `rows`
        (rows, width), which are in the order of experts, `counts` (experts,) of each."""
        theirs = self._asked(counts)
        here = len(counts) // self._ranks
        both = torch.stack((counts, theirs)).view(2, self._ranks, here)
        gives, takes = both.sum(2).tolist()  # waits for the device: sizes are needed
        labels = torch.arange(here, device=counts.device).repeat(self._ranks)
        order = order_by(labels.repeat_interleave(theirs, output_size=sum(takes)), here)
        came = all_to_all_single_autograd(rows, takes, gives, self._group)
        out = unsort(experts(sort(came, order), order.counts), order)
        return all_to_all_single_autograd(out, gives, takes, self._group)

    def _asked(self, counts: Tensor) -> Tensor:
        """Return, for each rank, the rows that it sends to each expert of this rank."""
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self._group)
        return theirs


def balance(model: nn.Module, rate: float) -> Tensor:
    """Update the biases of all routers of `model` by the tokens that all ranks have counted since
    the last update. Collective of all ranks, all of which have samples of their own.

    Returns:
        Tokens of the fullest expert over the mean of its layer.
    """
    routers = [module for module in model.modules() if isinstance(module, Router)]
    loads = torch.stack([router.load for router in routers])
    dist.all_reduce(loads)
    for router, load in zip(routers, loads, strict=True):
        router.balance(load, rate)
    return (loads.amax(1) / loads.float().mean(1)).max()
