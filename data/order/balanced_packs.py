"""The division of the sequences of a global step among ranks and micro-batches so that each
computes equally much attention: a pure function of the step.

Attention over a sequence of documents of t tokens takes sum(t^2) operations, where documents do not
attend to each other, so sequences of equal length differ by orders of magnitude. The step has the
same sequences whatever the world; only which rank takes which of them depends on it.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import Ints

Costs: TypeAlias = npt.NDArray[np.float64]


def attention_cost(lengths: Ints, length: int, linear: float = 0.0) -> float:
    """Return the cost of a sequence of `length` tokens with documents of `lengths` tokens: the sum
    of squares, where padding counts as a document, as kernels compute it, and `linear` for each
    token."""
    sizes = lengths.astype(np.float64)
    return float(sizes @ sizes + (length - sizes.sum()) ** 2 + linear * length)


def balanced_order(costs: Costs, world: int, micro_batch: int | None = None) -> Ints:
    """Return the numbers of the B sequences of a step in an order of which rank r of `world` takes
    the entries r B // world to (r + 1) B // world, one micro-batch after the other.

    The sequences are taken by falling cost (ties: in their order), each into the micro-batch with
    the least cost that has room for it (ties: the first). Micro-batches of similar cost are then
    computed at the same time, and of those each goes to the rank that has the least so far, the
    costliest first. Within a micro-batch, sequences are in the order of the step.

    Args:
        costs: shape (B,).
        micro_batch: the sequences of a micro-batch, by which a share is cut into equal parts; None:
            a share is computed as a whole.
    """
    borders = [rank * costs.size // world for rank in range(world + 1)]
    sizes = [_micro_batches(end - begin, micro_batch) for begin, end in pairwise(borders)]
    flat = [size for of_rank in sizes for size in of_rank]
    bins = _fill(costs, flat)
    if len({tuple(of_rank) for of_rank in sizes}) == 1 and len(set(sizes[0])) <= 1:
        bins = _dealt(bins, [float(costs[one].sum()) for one in bins], world)
    return np.array([number for one in bins for number in sorted(one)], np.int64)


def _micro_batches(share: int, micro_batch: int | None) -> list[int]:
    """Return the sizes of the micro-batches of a share, as `torch.Tensor.chunk` cuts it."""
    count = max(1, share // micro_batch) if micro_batch else 1
    size = max(1, -(-share // count))
    return [min(size, share - at) for at in range(0, share, size)]


def _fill(costs: Costs, sizes: Sequence[int]) -> list[list[int]]:
    """Return the sequences of each of the bins, which take `sizes` of them."""
    bins: list[list[int]] = [[] for _ in sizes]
    room = list(sizes)
    loads = [(0.0, number) for number, size in enumerate(sizes) if size]
    heapify(loads)
    for one in np.argsort(-costs, kind="stable").tolist():
        load, number = loads[0]
        bins[number].append(one)
        room[number] -= 1
        if room[number]:
            heapreplace(loads, (load + float(costs[one]), number))
        else:
            heappop(loads)
    return bins


def _dealt(bins: list[list[int]], loads: list[float], world: int) -> list[list[int]]:
    """Return equal bins in the order of ranks: those of similar load are at the same place of each
    rank, and loads are even in sum."""
    by_load = sorted(range(len(bins)), key=lambda number: -loads[number])
    ranks: list[list[int]] = [[] for _ in range(world)]
    sums = [0.0] * world
    for at in range(0, len(by_load), world):
        idle = sorted(range(world), key=lambda rank: (sums[rank], rank))
        for rank, number in zip(idle, by_load[at : at + world], strict=True):
            ranks[rank].append(number)
            sums[rank] += loads[number]
    return [bins[number] for rank in ranks for number in rank]
