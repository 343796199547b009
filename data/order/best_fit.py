"""Best fit decreasing: pieces are packed into bins of equal size, stream by stream, and the bins
are interleaved."""

from bisect import bisect_left, insort

import numpy as np

from data.order.keyed_permutation import Ints


def best_fit(streams: Ints, lengths: Ints, room: int) -> tuple[Ints, Ints]:
    """Return (bin of each piece, stream of each bin); a bin holds pieces of one stream, at most
    `room`.

    Within a stream, pieces are taken by falling length (ties: in their order), each into the bin
    with the least room that takes it (ties: the oldest), else into a new one (Johnson,
    "Near-optimal bin packing algorithms", MIT 1973). The bins of a stream are then put in the order
    of the pieces that opened them, not by length, so that no batch holds only long documents. Bin k
    of the n of a stream is at (2 k + 1) / 2 n of the whole, so streams are interleaved evenly. Bins
    are numbered in this order.
    """
    by_length = np.lexsort((-lengths, streams))
    borders = np.flatnonzero(np.diff(streams[by_length], prepend=-1))
    bins = np.empty(lengths.size, dtype=np.int64)
    opened: list[Ints] = []
    made = 0
    for part in np.split(by_length, borders[1:]):
        local, openers = _fill(lengths[part].tolist(), room)
        bins[part] = made + np.array(local, dtype=np.int64)
        opened.append(part[openers])
        made += len(openers)
    if not made:
        return bins, np.empty(0, dtype=np.int64)
    ranks, owners = _interleaved(np.concatenate(opened), streams)
    return ranks[bins], owners


def _fill(lengths: list[int], room: int) -> tuple[list[int], list[int]]:
    """Return (bin of each length, number of the length that opened each bin), for falling
    lengths."""
    free: list[tuple[int, int]] = []  # (room left, bin), rising
    bins: list[int] = []
    openers: list[int] = []
    for number, length in enumerate(lengths):
        at = bisect_left(free, (length, -1))
        if at < len(free):
            left, chosen = free.pop(at)
        else:
            left, chosen = room, len(openers)
            openers.append(number)
        bins.append(chosen)
        if left > length:
            insort(free, (left - length, chosen))
    return bins, openers


def _interleaved(openers: Ints, streams: Ints) -> tuple[Ints, Ints]:
    """Return (new number of each bin, stream of each bin by its new number).

    `openers` are the pieces that opened the bins.
    """
    owners = streams[openers]
    by_opener = np.lexsort((openers, owners))
    first = np.searchsorted(owners[by_opener], owners[by_opener])
    counts = np.searchsorted(owners[by_opener], owners[by_opener], side="right") - first
    places = ((2 * (np.arange(openers.size) - first) + 1) << 32) // (2 * counts)
    order = by_opener[np.lexsort((owners[by_opener], places))]
    ranks = np.empty_like(order)
    ranks[order] = np.arange(order.size)
    return ranks, owners[order]
