"""Bytes of a GPU's memory, part by part, at the moments of a step that may need most."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import chain

from hpckit.plan import activations as of
from hpckit.plan.activations import Batch, Recompute
from hpckit.plan.shapes import block, elements, ends, parameters
from hpckit.plan.stages import Stage, stages_of_rank
from hpckit.run.batch import share_of_rank
from hpckit.run.degrees import Degrees, degrees
from hpckit.run.spec import RunSpec

BYTES = {"fp32": 4, "bf16": 2}
"""Of one number."""
MASTER = 4  # bytes: parameters, their gradients and both moments of AdamW are fp32
_AHEAD = 2  # blocks whose parameters are gathered at the same time: one is computed, one comes


@dataclass(frozen=True)
class Memory:
    """Bytes of one moment."""

    parameters: int
    """This rank's, in fp32."""
    gathered: int
    """Those of all ranks that share a copy, in the format of computation."""
    gradients: int
    optimizer: int
    """Both moments of AdamW."""
    activations: int
    logits: int
    """With what the loss makes of them."""
    buffers: int
    """What is alive for a short time: gradients on their way, micro-batches that a pipeline hands
    on, what the optimizer computes with."""

    @property
    def total(self) -> int:
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """By name, in the order of definition."""
        return asdict(self)


@dataclass(frozen=True)
class Footprint:
    """Of a rank in the course of a step, by moment: `loss`, when the backward pass begins;
    `backward`, in the last block before activations become fewer; `reduced`, when gradients are
    complete; `optimizer`, while parameters change."""

    moments: dict[str, Memory]

    @property
    def peak(self) -> Memory:
        return self.moments[self.at]

    @property
    def at(self) -> str:
        """The moment that needs most."""
        return max(self.moments, key=lambda name: self.moments[name].total)


def footprint(spec: RunSpec, world: int, recompute: Recompute = "none") -> Footprint:
    """That of the rank which needs most, of `world`."""
    return max(footprints(spec, world, recompute), key=lambda one: one.peak.total)


def footprints(spec: RunSpec, world: int, recompute: Recompute = "none") -> list[Footprint]:
    """Those of the ranks of a pipeline; without one, of any rank."""
    ranks = range(degrees(spec.parallel, world).pipeline)
    return [Footprint(_moments(_rank(spec, world, rank), recompute)) for rank in ranks]


def micro_batches(spec: RunSpec, world: int) -> tuple[int, int]:
    """How many a rank takes in a step, and the samples of each."""
    share = share_of_rank(spec, world)
    count = max(1, share // spec.train.micro_batch)
    return count, share // count


def checkpoint_bytes(spec: RunSpec) -> int:
    """Of one, uncompressed: parameters and both moments of AdamW."""
    return 3 * MASTER * elements(parameters(spec.model))


@dataclass(frozen=True)
class _Rank:
    """What one rank has, numbers of parameters in elements."""

    spec: RunSpec
    degrees: Degrees
    stages: list[Stage]
    batch: Batch
    micro_batches: int
    mine: int
    """Parameters that are left to it after everything is divided."""
    blocks: int
    """Those of its blocks as they are computed with, likewise the next two."""
    block: int
    ends: int

    @property
    def compute(self) -> int:
        return BYTES[self.spec.precision.compute]

    @property
    def reduce(self) -> int:
        return BYTES[self.spec.precision.reduce]

    @property
    def gathers_layers(self) -> bool:
        """As `hpckit.training.parallel.sharding` has it."""
        found, parallel = self.degrees, self.spec.parallel
        only_copies = found.replicate > 1 and found.shard == found.tensor == 1
        return parallel.zero == 3 and found.pipeline == 1 and not only_copies

    @property
    def accumulated(self) -> int:
        """Bytes of gradients that earlier micro-batches have left."""
        if self.micro_batches == 1:
            return 0
        if self.spec.parallel.reduce == "last" or self.degrees.pipeline > 1:
            return self.reduce * (self.blocks + self.ends)
        return MASTER * self.mine


def _rank(spec: RunSpec, world: int, rank: int) -> _Rank:
    model, found = spec.model, degrees(spec.parallel, world)
    count, samples = micro_batches(spec, world)
    stages = stages_of_rank(model.layers, spec.parallel, found.pipeline, rank, count)
    of_ends = [*chain(*(ends(model, is_first=s.is_first, is_last=s.is_last) for s in stages))]
    blocks, one = sum(stage.blocks for stage in stages), block(model)
    return _Rank(
        spec,
        found,
        stages,
        Batch(samples, BYTES[spec.precision.compute], found.tensor),
        count,
        mine=elements(of_ends, found.tensor, found.shard)
        + blocks * elements(one, found.tensor, found.shard),
        blocks=blocks * elements(one, found.tensor),
        block=elements(one, found.tensor),
        ends=elements(of_ends, found.tensor),
    )


def _moments(rank: _Rank, recompute: Recompute) -> dict[str, Memory]:
    gathered = rank.ends if rank.gathers_layers else rank.ends + rank.blocks
    kept, room = _kept(rank, recompute), _handed_on(rank)
    loss = Memory(
        parameters=MASTER * rank.mine,
        gathered=rank.compute * gathered,
        gradients=rank.accumulated,
        optimizer=2 * MASTER * rank.mine,
        activations=kept,
        logits=_logits(rank),
        buffers=room,
    )
    ahead = min(_AHEAD * rank.block, rank.blocks) if rank.gathers_layers else 0
    backward = replace(
        loss,
        gathered=rank.compute * (gathered + ahead),
        activations=kept + _in_backward(rank, recompute),
        logits=_waiting_logits(rank, 1),
        buffers=room + _gradients_on_their_way(rank, recompute),
    )
    reduced = replace(
        loss,
        gradients=MASTER * rank.mine,
        activations=0,
        logits=0,
        buffers=room + rank.ends * (rank.compute + rank.reduce),
    )
    optimizer = replace(
        reduced,
        gathered=0,
        buffers=room + MASTER * rank.mine,  # torch's foreach makes a list of square roots
    )
    return {"loss": loss, "backward": backward, "reduced": reduced, "optimizer": optimizer}


def _kept(rank: _Rank, recompute: Recompute) -> int:
    """Activations of all micro-batches that wait, without logits."""
    model, batch, total = rank.spec.model, rank.batch, 0
    for stage in rank.stages:
        each = of.of_blocks(model, batch, stage.blocks, recompute)
        each += of.of_embedding(model, batch) if stage.is_first else 0
        each += of.of_output(model, batch) if stage.is_last else of.of_input(model, batch)
        total += stage.waiting * each
    return total


def _handed_on(rank: _Rank) -> int:
    """Torch's stages have room for what each micro-batch of a step brings, forward and backward;
    what waits for its backward pass is counted as an activation."""
    each, total = of.of_input(rank.spec.model, rank.batch), 0
    for stage in rank.stages:
        total += 0 if stage.is_first else (rank.micro_batches - stage.waiting) * each
        total += 0 if stage.is_last else rank.micro_batches * each
    return total


def _logits(rank: _Rank) -> int:
    """When the backward pass begins."""
    if not any(stage.is_last for stage in rank.stages):
        return 0
    model, batch = rank.spec.model, rank.batch
    return of.logits_peak(model, batch) - of.logits(model, batch) + _waiting_logits(rank, 0)


def _waiting_logits(rank: _Rank, done: int) -> int:
    """What the loss keeps of all micro-batches but `done`, and in a pipeline the logits, too."""
    waiting = sum(stage.waiting - done for stage in rank.stages if stage.is_last)
    each = of.logits(rank.spec.model, rank.batch)
    if rank.degrees.pipeline > 1:
        each += each // MASTER * rank.compute
    return waiting * each


def _in_backward(rank: _Rank, recompute: Recompute) -> int:
    """What is more, or less, when the last block goes backward: it is there as a whole, and what
    the output layer kept is gone."""
    model, batch = rank.spec.model, rank.batch
    more = of.of_block(model, batch) - of.of_input(model, batch) if recompute == "full" else 0
    gone = of.of_output(model, batch) if any(stage.is_last for stage in rank.stages) else 0
    return more - gone


def _gradients_on_their_way(rank: _Rank, recompute: Recompute) -> int:
    """Of activations at the widest place of a block; of a block's parameters while they are
    reduced, beyond the activations that it has left by then; and of the output layer, which wait
    for those of the embedding."""
    model, batch = rank.spec.model, rank.batch
    left = of.of_blocks(model, batch, 1, recompute)
    reducing = max(0, rank.block * (rank.compute + rank.reduce) - left)
    waiting = 0 if rank.accumulated else rank.ends * rank.compute
    return of.gradients_of_block(model, batch) + reducing + waiting
