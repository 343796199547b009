"""Checks whether a run fits into a card's memory, and finds the simplest parallel layout that
does, even if the estimate is wrong by as much as it may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpckit.config.rules.world_size import world_size_violations
from hpckit.config.spec import ImageSpec, ParallelSpec, RunSpec
from hpckit.planner.assumptions import CUDA_GIB, DECODER_ERROR, FRAGMENTS, IMAGE_ERROR
from hpckit.planner.gpu_cards import GpuCard
from hpckit.planner.memory.decoder_memory import footprint


@dataclass(frozen=True)
class LayoutChoice:
    """A layout that fits with headroom."""

    parallel: ParallelSpec
    micro_batch: int
    words: tuple[str, ...]
    """Words to add to the command line for it."""
    peak: int
    """Bytes of a GPU's memory that it needs, by the estimate."""


def room(card: GpuCard) -> int:
    """Return the bytes that are available to tensors."""
    return int(card.memory_gib * 2**30 * (1 - FRAGMENTS) - CUDA_GIB * 2**30)


def error_of(spec: RunSpec) -> float:
    """Return the share by which the memory of a run may exceed the estimate."""
    return IMAGE_ERROR if isinstance(spec.model, ImageSpec) else DECODER_ERROR


def has_headroom(peak: int, error: float, available: int) -> bool:
    """Return whether what is available is enough even if the estimate is wrong by `error`."""
    return peak * (1 + error) <= available


def recommend(spec: RunSpec, nodes: int, card: GpuCard) -> LayoutChoice | None:
    """Return the first layout that fits with headroom for the error of the estimate, from the least
    communication to the most sharding; with the batch as it is, then with micro-batches of one
    sample, then with activation recompute. None: there is none."""
    world, error = nodes * spec.launch.nproc_per_node, error_of(spec)
    for frugal in (spec, recomputed(spec)):
        for micro in dict.fromkeys((spec.train.micro_batch, 1)):
            for words, parallel in ladder(spec.parallel, nodes, spec.launch.nproc_per_node):
                made = _with(frugal, parallel, micro)
                if list(world_size_violations(made, nodes)):
                    continue
                peak = footprint(made, world).peak.total
                if has_headroom(peak, error, room(card)):
                    words += (f"train.micro_batch={micro}",) if made.train != spec.train else ()
                    words += (
                        ("memory.activation_checkpointing=full",)
                        if made.memory != spec.memory
                        else ()
                    )
                    return LayoutChoice(parallel, micro, words, peak)
    return None


def recomputed(spec: RunSpec) -> RunSpec:
    """Return the same run with full recompute of blocks."""
    return replace(spec, memory=replace(spec.memory, activation_checkpointing="full"))


def ladder(
    given: ParallelSpec, nodes: int, per_node: int
) -> Iterator[tuple[tuple[str, ...], ParallelSpec]]:
    """Yield layouts, each with less on a rank than the one before, as words for the command line
    and as the composed spec."""
    everything = replace(
        given,
        replicate=1,
        shard=-1,
        tensor=1,
        pipeline=1,
        expert=1,
        schedule="1f1b",
        zero=3,
        no_sync=True,
    )
    yield ("parallel=ddp",), replace(everything, replicate=-1, shard=1, zero=1)
    yield ("parallel=zero1",), replace(everything, zero=1)
    yield ("parallel=zero2",), replace(everything, zero=2, no_sync=False)
    yield ("parallel=fsdp",), everything
    yield ("parallel=fsdp", "parallel.no_sync=false"), replace(everything, no_sync=False)
    for tensor in _powers(per_node):
        word = "parallel=fsdp_tp", f"parallel.tensor={tensor}"
        yield word, replace(everything, tensor=tensor)
    for pipeline in _powers(nodes):
        words = f"parallel.tensor={per_node}", f"parallel.pipeline={pipeline}"
        divided = replace(everything, tensor=per_node, pipeline=pipeline)
        yield ("parallel=fsdp_tp", *words), divided
    for expert in _powers(per_node):
        yield ("parallel=fsdp", f"parallel.expert={expert}"), replace(everything, expert=expert)


def _with(spec: RunSpec, parallel: ParallelSpec, micro_batch: int) -> RunSpec:
    train = replace(spec.train, micro_batch=micro_batch)
    return replace(spec, parallel=parallel, train=train)


def _powers(most: int) -> Iterator[int]:
    """Return the powers of 2 from 2 to `most`."""
    power = 2
    while power <= most:
        yield power
        power *= 2
