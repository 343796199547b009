"""Copies cells of tensors, bit for bit, into memory that was laid out for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Thread

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import increment_version

from checkpointing.distributed_classes import is_dtensor
from checkpointing.format.tiles import Box
from checkpointing.format.torch_dtypes import bits_of
from checkpointing.torch_internals import foreach_copy

Copy = Callable[[Sequence[Tensor], Sequence[Tensor]], None]  # targets, sources

THREADS = min(4, os.cpu_count() or 1)
PIECE = 16 << 20  # bytes that one thread copies at a time, at most
# bytes below which torch's loop over many tensors costs less than a call of numpy for each
SMALL = 64 << 10
# as bool, bytes other than 0 and 1 could become 1; torch 2.9 cannot copy float4
_AS_BYTES = (torch.bool, getattr(torch, "float4_e2m1fn_x2", torch.bool))


def cells_of(tensor: Tensor, box: Box | None = None) -> Tensor:
    """Returns the cells of a box of a tensor, without a copy.

    Args:
        tensor: a tensor; of a DTensor, this rank's part is used.
        box: in the coordinates of that part; None: all of it.
    """
    held = tensor
    if is_dtensor(tensor):
        with torch.no_grad():
            held = tensor.to_local()
    if box is not None and box.sizes != held.shape:
        with torch.no_grad():
            held = held[box.slices]
    return held.detach().view(torch.uint8) if held.dtype in _AS_BYTES else held


def places_for(
    memory: NDArray[np.uint8], offsets: Sequence[int], cells: Sequence[Tensor]
) -> list[Tensor]:
    """Returns a tensor for each of `cells`, at its offset of `memory` in bytes and in C order, into
    which the cells can be copied."""
    views, found = dict[torch.dtype, Tensor](), list[Tensor]()
    for offset, one in zip(offsets, cells, strict=True):
        dtype, size = one.dtype, one.element_size()
        if offset % size or not one.is_contiguous():
            there = torch.from_numpy(memory[offset : offset + one.numel() * size])
            found.append(there.view(dtype).view(one.shape))
            continue
        if (typed := views.get(dtype)) is None:
            whole = memory[: len(memory) // size * size]
            typed = views[dtype] = torch.from_numpy(whole).view(dtype)
        found.append(typed.as_strided(one.shape, one.stride(), offset // size))
    return found


def copy(
    targets: Sequence[Tensor], sources: Sequence[Tensor], *, non_blocking: bool = False
) -> None:
    """Copy with torch's threads, without a call from Python for every tensor."""
    if targets:
        # outside of the mode in which they were made, some tensors must not be written to
        is_inference = any(map(Tensor.is_inference, targets))
        with torch.inference_mode() if is_inference else torch.no_grad():
            foreach_copy(targets, sources, non_blocking=non_blocking)


def copy_quietly(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy in this thread only, which holds the GIL for a small part of the time: more threads
    would take cores from the trainer."""
    few: list[tuple[Tensor, Tensor]] = []
    for target, source in zip(targets, sources, strict=True):
        if target.nbytes < SMALL:
            few.append((target, source))
        elif source.is_cpu and not (source.is_conj() or source.is_neg()):
            np.copyto(bits_of(target), bits_of(source))
        else:
            copy([target], [source])
    copy([target for target, _ in few], [source for _, source in few])


def copy_quickly(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy with several threads, each of which takes the next piece when it has finished one;
    complete on return.

    torch cuts each tensor into as many parts as it has threads, and waits for all of them before
    the next tensor: for a thread whose core is busy with other work, all others wait. Under
    torchrun, it has one thread. Targets that share memory are left to torch, which copies them one
    after the other, so that the last one counts.
    """
    large: list[tuple[NDArray[np.generic], NDArray[np.generic]]] = []
    written, others = list[Tensor](), list[tuple[Tensor, Tensor]]()
    for target, source, is_apart in zip(targets, sources, apart(targets), strict=True):
        if target.nbytes >= SMALL and is_apart and is_plain(target) and is_plain(source):
            large += _pieces(bits_of(target), bits_of(source))
            written.append(target)
        else:
            others.append((target, source))
    copy([target for target, _ in others], [source for _, source in others], non_blocking=True)
    if large:
        in_threads([partial(np.copyto, target, source) for target, source in large])
        note_written(written)
    for device in {target.device for target, _ in others if target.is_cuda}:
        torch.cuda.synchronize(device)


def in_threads(copies: Sequence[Callable[[], object]]) -> None:
    """Make all these copies, each of which releases the GIL, in this thread and others, each of
    which takes the next copy when it has finished one. If one fails, the others stop and its error
    is raised."""
    left, errors = iter(copies), list[BaseException]()

    def work() -> None:
        try:
            for one in left:  # each goes to one thread, as CPython's iterators of lists promise
                if errors:
                    return
                one()
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
            errors.append(error)

    threads = [Thread(target=work, name="copy") for _ in range(min(THREADS, len(copies)) - 1)]
    try:
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
    except BaseException as error:  # an interrupt; or there can be no more threads
        errors.append(error)
        for thread in threads:
            if thread.ident is not None:  # it was started, and may still write
                thread.join()
        raise
    if errors:
        raise errors[0]


def note_written(tensors: Iterable[Tensor]) -> None:
    """Tell torch that the content of these has changed, as its own copies do: a backward pass that
    needs what was there before fails, instead of computing with the new content."""
    increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def apart(tensors: Sequence[Tensor]) -> list[bool]:
    """Returns of each tensor whether its elements, and those of the others, are surely in different
    places of memory. Those of tied weights are not, nor those of an expanded tensor."""
    found = [0 not in one.stride() or one.is_contiguous() for one in tensors]
    ranges = ((one.data_ptr(), _length(one), n) for n, one in enumerate(tensors) if one.numel())
    end, last = 0, 0  # of the tensor that ends last, of those that begin before
    for start, length, number in sorted(ranges):
        if start < end:
            found[number] = found[last] = False
        if start + length > end:
            end, last = start + length, number
    return found


def _length(tensor: Tensor) -> int:
    """Returns the bytes from the first element to the end of the last one."""
    if tensor.is_contiguous():
        return tensor.nbytes
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def is_plain(tensor: Tensor) -> bool:
    """Whether numpy sees the content of the tensor."""
    return tensor.is_cpu and not (tensor.is_conj() or tensor.is_neg())


def _pieces(
    target: NDArray[np.generic], source: NDArray[np.generic]
) -> list[tuple[NDArray[np.generic], NDArray[np.generic]]]:
    """Cut both along their longest dimension, so that several threads copy one large tensor."""
    count = min(-(-target.nbytes // PIECE), max(target.shape))
    if count < 2:
        return [(target, source)]
    axis = target.shape.index(max(target.shape))
    parts = (np.array_split(array, count, axis) for array in (target, source))
    return list(zip(*parts, strict=True))
