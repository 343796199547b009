"""Expert parallelism: tokens are sent to the ranks of their experts, and back.

Lepikhin et al., "GShard" (2021), without its limit on the number of tokens of an expert.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from hpckit.torch_internals import all_to_all_single_autograd
from hpckit.trainer.models.mixture_of_experts import Experts, MixtureOfExperts, Router
from hpckit.trainer.models.token_dispatch import order_by, sort, unsort


def shard_experts(model: nn.Module, mesh: DeviceMesh) -> list[Experts]:
    """Shard the experts of each layer of `model` over the ranks of `mesh`, which has one dimension,
    in place; return the experts of each layer."""
    layers = []
    for layer in model.modules():
        if isinstance(layer, MixtureOfExperts):
            layer.exchange = TokenExchange(mesh)
            experts = layer.experts
            for name, stack in list(experts.named_parameters()):
                sharded = distribute_tensor(stack, mesh, [Shard(0)], src_data_rank=None)
                experts.register_parameter(name, nn.Parameter(sharded))
            experts.ranks = mesh.size()
            layers.append(experts)
    return layers


class TokenExchange:
    """The exchange of tokens between ranks, each of which has consecutive experts. Each call is a
    collective."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._group, self._ranks = mesh.get_group(), mesh.size()

    def __call__(self, experts: Experts, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the outputs of `experts`, which are sharded over the ranks, for the tokens of this
        rank.

        Args:
            rows: (rows, width), a row for each expert of each token, in the order of experts.
            counts: (experts,), the number of rows of each expert.

        Returns:
            (rows, width), in the order of `rows`.
        """
        received_counts = self._exchange_counts(counts)
        local_experts = len(counts) // self._ranks
        both = torch.stack((counts, received_counts)).view(2, self._ranks, local_experts)
        send, receive = both.sum(2).tolist()  # waits for the device, since sizes are needed
        labels = torch.arange(local_experts, device=counts.device).repeat(self._ranks)
        order = order_by(
            labels.repeat_interleave(received_counts, output_size=sum(receive)), local_experts
        )
        received = all_to_all_single_autograd(rows, receive, send, self._group)
        out = unsort(experts(sort(received, order), order.counts), order)
        return all_to_all_single_autograd(out, send, receive, self._group)

    def _exchange_counts(self, counts: Tensor) -> Tensor:
        """Return, for each rank, the number of rows that it sends to each expert of this rank."""
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=self._group)
        return received


def balance_routers(model: nn.Module, rate: float) -> Tensor:
    """Update the biases of all routers of `model` by the tokens that all ranks have counted since
    the last update. Collective of all ranks, each of which has samples of its own.

    Args:
        rate: how far a bias moves in one update.

    Returns:
        The largest ratio, over all layers, of the tokens of the fullest expert to the mean of its
        layer.
    """
    routers = [module for module in model.modules() if isinstance(module, Router)]
    loads = torch.stack([router.load for router in routers])
    dist.all_reduce(loads)
    for router, load in zip(routers, loads, strict=True):
        router.balance(load, rate)
    return (loads.amax(1) / loads.float().mean(1)).max()
