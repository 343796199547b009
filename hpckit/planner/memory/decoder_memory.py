"""Memory of a GPU that trains a decoder, by category, at the moments of a step that may need
most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

from hpckit.config.parallel_degrees import ParallelDegrees, degrees, gathers_layers
from hpckit.config.rules.model import decoder_of
from hpckit.config.rules.precision_and_memory import masks_attention
from hpckit.config.spec import DecoderSpec, ImageSpec, RunSpec
from hpckit.planner.memory.image_memory import checkpoint_numbers, kept_by_images, moments_of_images
from hpckit.planner.memory.memory_footprint import (
    BYTES,
    FsdpBuffers,
    MemoryFootprint,
    MemoryUse,
    kept_by_optimizer,
    micro_batches,
    wrapping,
)
from hpckit.planner.model import activations as of
from hpckit.planner.model.activations import ActivationBatch, Recompute
from hpckit.planner.model.parameter_shapes import (
    ParameterShape,
    adapter_count,
    adapters,
    block,
    elements,
    ends,
    parameters,
)
from hpckit.planner.model.pipeline_stages import PipelineStage, stages_of_rank

_AHEAD = 2  # blocks gathered at the same time: the present one and the next one


def footprint(spec: RunSpec, world: int) -> MemoryFootprint:
    """Return the footprint of the rank that needs most, of `world` ranks."""
    return max(footprints(spec, world), key=lambda one: one.peak.total)


def footprints(spec: RunSpec, world: int) -> list[MemoryFootprint]:
    """Return the footprints of the ranks of a pipeline; without a pipeline, that of any rank."""
    if isinstance(spec.model, ImageSpec):
        return [MemoryFootprint(moments_of_images(spec, spec.model, world))]
    ranks = range(degrees(spec.parallel, world).pipeline)
    return [MemoryFootprint(_moments(_rank(spec, world, rank))) for rank in ranks]


def batch_of(spec: RunSpec, samples: int, tensor: int) -> ActivationBatch:
    """Return a micro-batch of that size, on ranks of which `tensor` compute each layer together."""
    return ActivationBatch(
        samples, BYTES[spec.precision.compute], tensor, spec.memory.attention == "math"
    )


def kept_by_blocks(spec: RunSpec, world: int) -> float:
    """Return the bytes of a micro-batch that a rank's blocks keep without recompute, averaged over
    the ranks of a pipeline."""
    found, (_, samples) = degrees(spec.parallel, world), micro_batches(spec, world)
    batch = batch_of(spec, samples, found.tensor)
    if isinstance(spec.model, ImageSpec):
        return kept_by_images(spec.model, batch)
    return spec.model.layers / found.pipeline * of.of_block(spec.model, batch)


def checkpoint_bytes(spec: RunSpec) -> int:
    """Return the bytes of an uncompressed checkpoint: parameters and the optimizer's state."""
    if isinstance(spec.model, ImageSpec):
        return BYTES[spec.precision.master] * checkpoint_numbers(spec, spec.model)
    model = decoder_of(spec)
    of_ends = [*ends(model, is_first=True, is_last=True)]
    kept = kept_by_optimizer(spec, [] if spec.lora else of_ends)
    kept += model.layers * kept_by_optimizer(spec, _trained(spec), are_inside=True)
    whole = elements(parameters(model)) + adapter_count(model, spec.lora)
    return BYTES[spec.precision.master] * (whole + kept)


@dataclass(frozen=True)
class _Rank:
    """What one rank holds, with numbers of parameters in elements."""

    spec: RunSpec
    degrees: ParallelDegrees
    stages: list[PipelineStage]
    batch: ActivationBatch
    micro_batches: int
    mine: int
    """Parameters of this rank after all sharding."""
    trained: int
    """Those of them that have gradients."""
    kept: int
    """Numbers that the optimizer keeps of these."""
    blocks: int
    """Parameters of its blocks in the form used for computation, likewise the next two."""
    block: int
    ends: int
    trained_block: int
    """Those that have gradients, likewise the next one."""
    trained_ends: int
    fsdp: FsdpBuffers

    @property
    def model(self) -> DecoderSpec:
        return decoder_of(self.spec)

    @property
    def master(self) -> int:
        return BYTES[self.spec.precision.master]

    @property
    def held(self) -> int:
        """Return the bytes of a parameter and its gradient that stay in the GPU's memory."""
        return 0 if self.spec.memory.cpu_offload else self.master

    @property
    def compute(self) -> int:
        return BYTES[self.spec.precision.compute]

    @property
    def reduce(self) -> int:
        return BYTES[self.spec.precision.reduce]

    @property
    def accumulated(self) -> int:
        """Return the bytes of gradients that earlier micro-batches have accumulated."""
        if self.micro_batches == 1:
            return 0
        if self.spec.parallel.no_sync or self.degrees.pipeline > 1:
            trained = sum(stage.blocks for stage in self.stages) * self.trained_block
            return self.reduce * (trained + self.trained_ends)
        return self.held * self.trained


def _rank(spec: RunSpec, world: int, rank: int) -> _Rank:
    model, found = decoder_of(spec), degrees(spec.parallel, world)
    count, samples = micro_batches(spec, world)
    stages = stages_of_rank(model.layers, spec.parallel, found.pipeline, rank, count)
    of_ends = [*chain(*(ends(model, is_first=s.is_first, is_last=s.is_last) for s in stages))]
    blocks, one = sum(stage.blocks for stage in stages), block(model)
    one += adapters(model, spec.lora)
    trained, trained_ends = _trained(spec), [] if spec.lora else of_ends
    ranks = found.tensor, found.shard, found.expert
    computed = elements(one, found.tensor, 1, found.expert)
    return _Rank(
        spec,
        found,
        stages,
        batch_of(spec, samples, found.tensor),
        count,
        mine=elements(of_ends, *ranks) + blocks * elements(one, *ranks),
        trained=elements(trained_ends, *ranks) + blocks * elements(trained, *ranks),
        kept=kept_by_optimizer(spec, trained_ends, *ranks)
        + blocks * kept_by_optimizer(spec, trained, *ranks, are_inside=True),
        blocks=blocks * computed,
        block=computed,
        ends=elements(of_ends, found.tensor),
        trained_block=elements(trained, found.tensor, 1, found.expert),
        trained_ends=elements(trained_ends, found.tensor),
        fsdp=wrapping(spec, world, gathers_layers=_gathers_layers(spec, found)),
    )


def _gathers_layers(spec: RunSpec, found: ParallelDegrees) -> bool:
    """Whether layers are gathered, because ranks share them."""
    only_copies = found.replicate > 1 and found.shard == found.tensor == 1
    return gathers_layers(spec.parallel.zero, found) and not only_copies


def _trained(spec: RunSpec) -> list[ParameterShape]:
    """Return the trained parameters of one block."""
    model = decoder_of(spec)
    return adapters(model, spec.lora) if spec.lora else block(model)


def _moments(rank: _Rank) -> dict[str, MemoryUse]:
    recompute = rank.spec.memory.activation_checkpointing
    gathered = rank.ends if rank.fsdp.gathers_layers else rank.ends + rank.blocks
    kept, room = _kept(rank, recompute), _pipeline_buffers(rank)
    first = rank.fsdp.layer * rank.block  # of the backward pass; it is prefetched
    loss = MemoryUse(
        parameters=rank.held * rank.mine,
        gathered=rank.fsdp.copy * gathered + first,
        gradients=rank.accumulated,
        optimizer=rank.held * rank.kept,
        activations=kept,
        logits=_logits(rank),
        buffers=room + _chunk_gradients(rank),
    )
    ahead = rank.fsdp.layer * min(_AHEAD * rank.block, rank.blocks)
    backward = replace(
        loss,
        gathered=rank.fsdp.copy * gathered + ahead,
        activations=kept + _in_backward(rank, recompute),
        logits=_waiting_logits(rank, 1),
        buffers=room + _gradients_in_transit(rank, recompute),
    )
    reduced = replace(
        loss,
        gradients=rank.held * rank.trained,
        activations=0,
        logits=0,
        buffers=room + rank.trained_ends * rank.fsdp.reducing,
    )
    optimizer = replace(
        reduced,
        gathered=0,
        buffers=room + _optimizer_buffers(rank),
    )
    return {"loss": loss, "backward": backward, "reduced": reduced, "optimizer": optimizer}


def _optimizer_buffers(rank: _Rank) -> int:
    """Return the bytes that the optimizer computes with. AdamW is one kernel that works in place;
    the others make a list of updates."""
    return 0 if rank.spec.optim.kind == "adamw" else rank.held * rank.trained


def _kept(rank: _Rank, recompute: Recompute) -> int:
    """Return the activations of all waiting micro-batches, without logits."""
    model, batch, total = rank.model, rank.batch, 0
    for stage in rank.stages:
        each = of.of_blocks(model, batch, stage.blocks, recompute)
        if recompute == "none":
            each += stage.blocks * of.of_adapters(model, batch, rank.spec.lora)
        each += of.of_embedding(model, batch) if stage.is_first else 0
        if masks_attention(rank.spec) and rank.spec.memory.attention != "varlen":
            each += of.of_documents(model, batch, stage.blocks if recompute == "none" else 0)
        each += of.of_output(model, batch) if stage.is_last else of.of_input(model, batch)
        total += stage.waiting * each
    return total


def _pipeline_buffers(rank: _Rank) -> int:
    """Return the bytes that torch's stages reserve for the inputs of each micro-batch of a step,
    forward and backward. Those that wait for their backward pass count as activations."""
    each, total = of.of_input(rank.model, rank.batch), 0
    for stage in rank.stages:
        total += 0 if stage.is_first else (rank.micro_batches - stage.waiting) * each
        total += 0 if stage.is_last else rank.micro_batches * each
    return total


def _logits(rank: _Rank) -> int:
    """Return the bytes of logits when the backward pass begins."""
    if not any(stage.is_last for stage in rank.stages):
        return 0
    model, batch = rank.model, rank.batch
    if (chunks := rank.spec.memory.loss_chunks) > 1:
        return of.logits_peak(model, batch) // chunks
    return of.logits_peak(model, batch) - of.logits(model, batch) + _waiting_logits(rank, 0)


def _chunk_gradients(rank: _Rank) -> int:
    """Return the gradients of the output layer if its loss is computed in chunks: their sum, and
    one more."""
    is_last = any(stage.is_last for stage in rank.stages)
    if rank.spec.memory.loss_chunks == 1 or not is_last or rank.spec.lora:
        return 0
    model = rank.model
    return 2 * rank.compute * model.vocab * model.width // rank.degrees.tensor


def _waiting_logits(rank: _Rank, done: int) -> int:
    """Return what the loss keeps of all micro-batches but `done`, unless it recomputes it."""
    if rank.spec.memory.loss_chunks > 1:
        return 0
    waiting = sum(stage.waiting - done for stage in rank.stages if stage.is_last)
    return waiting * of.logits(rank.model, rank.batch)


def _in_backward(rank: _Rank, recompute: Recompute) -> int:
    """Return the difference when the last block runs backward: it is gathered, and what the output
    layer kept is freed."""
    model, batch = rank.model, rank.batch
    more = of.of_block(model, batch) - of.of_blocks(model, batch, 1, recompute)
    gone = of.of_output(model, batch) if any(stage.is_last for stage in rank.stages) else 0
    return more - gone


def _gradients_in_transit(rank: _Rank, recompute: Recompute) -> int:
    """Return the gradients in transit: of activations at the widest place of a block; of a block's
    parameters while they are reduced, beyond the activations that it has freed by then; and of the
    output layer, which wait for those of the embedding."""
    model, batch = rank.model, rank.batch
    left = of.of_blocks(model, batch, 1, recompute)
    reducing = max(0, rank.trained_block * rank.fsdp.reducing - left)
    waiting = 0 if rank.accumulated else rank.trained_ends * rank.compute
    return of.gradients_of_block(model, batch) + reducing + waiting
