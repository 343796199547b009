"""The time of a step on a card: its lower bounds, and the expected time."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hpckit.config.batch_size import global_batch
from hpckit.config.parallel_degrees import ParallelDegrees, degrees, stages_per_rank
from hpckit.config.rules.experts import experts_of
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import ImageSpec, RunSpec
from hpckit.planner.assumptions import HOST_MEMORY_GBPS, LINK
from hpckit.planner.gpu_cards import GpuCard
from hpckit.planner.memory.decoder_memory import kept_by_blocks
from hpckit.planner.memory.memory_footprint import BYTES, micro_batches, moments
from hpckit.planner.model.activations import ActivationBatch, of_input
from hpckit.planner.model.model_work import ModelWork, work_of
from hpckit.planner.model.parameter_shapes import elements, parameters, trained_count


@dataclass(frozen=True)
class EstimatedStepTime:
    """The seconds of a step by part."""

    compute: float
    """Forward and backward, at the assumed utilisation."""
    tensor: float
    """Exchange of activations between the ranks that compute a layer together, which nothing
    overlaps."""
    expert: float
    """Exchange of tokens with the ranks of their experts, which nothing overlaps."""
    data: float
    """Exchange of parameters and gradients between ranks, without what `compute` overlaps."""
    offload: float
    """Copies of parameters from the host's memory and gradients to it, without what is
    overlapped."""
    bubble: float
    """Idle time of a pipeline's ranks before the first micro-batch, and after the last one."""
    optimizer: float

    @property
    def total(self) -> float:
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Return the seconds by name, in the order of definition."""
        return asdict(self)


@dataclass(frozen=True)
class Roofline:
    """Lower bounds of a step's seconds by each resource alone (Williams et al. 2009)."""

    compute: float
    """All operations at the card's peak."""
    memory: float
    """All bytes at the rate of its memory."""
    network: float
    """All bytes between ranks at the rate of their links."""
    host: float
    """With offload to the host's memory: all bytes from there or to it, at the rate of PCI Express,
    and those of the optimizer there."""
    intensity: float
    """Operations per byte of memory traffic."""
    ridge: float
    """The ridge point of the card: with fewer operations per byte, its memory is the bound."""

    @property
    def bound(self) -> str:
        """The resource with the largest bound."""
        seconds = self.limits()
        return max(seconds, key=lambda name: seconds[name])

    @property
    def best(self) -> float:
        """The seconds of a step that only this bound limits."""
        return max(self.limits().values())

    def limits(self) -> dict[str, float]:
        """Return the seconds by resource."""
        names = ("compute", "memory", "network", "host")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class EstimatedSpeed:
    """The estimated speed of a run."""

    step: EstimatedStepTime
    roofline: Roofline
    tokens: int
    """Tokens of a step."""
    flops: int
    """Operations of a step that the model needs."""
    utilisation: float
    """Model FLOPs utilisation of the whole step."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.step.total


def speed(
    spec: RunSpec,
    world: int,
    card: GpuCard,
    utilisation: float,
) -> EstimatedSpeed:
    """Estimate the speed of `world` ranks on such cards, which reach `utilisation` of their peak
    while they compute.

    Raises:
        ValueError: the card has no `precision.compute`.
    """
    work = work_of(spec)
    found, peak = degrees(spec.parallel, world), card.peak(spec.precision.compute)
    if peak is None:
        raise ValueError(
            f"precision.compute: the {card.name} does not support {spec.precision.compute}"
        )
    tokens = global_batch(spec, world) * work.units
    each = tokens / world  # share of one rank
    at_peak = each * _unit_s(work, spec.precision.compute, card)
    compute = at_peak / utilisation
    tensor, data = _tensor_s(spec, world, card), _data_s(spec, world, card)
    expert, host = _expert_s(spec, world, card), _host_s(spec, world, card)
    count, _ = micro_batches(spec, world)
    idle = (found.pipeline - 1) / (count * stages_per_rank(spec.parallel))
    hidden = _hides(spec, found, count) * compute
    stepped = _stepped_s(spec, found, card)
    step = EstimatedStepTime(
        compute=compute,
        tensor=tensor,
        expert=expert,
        data=max(0.0, data - hidden),
        offload=max(0.0, host - hidden),
        bubble=(compute + tensor) * (idle if found.pipeline > 1 else 0.0),
        optimizer=stepped,
    )
    flops = tokens * work.flops
    moved = _moved(spec, world)
    limits = Roofline(
        compute=at_peak,
        memory=moved / (card.memory_gbps * 1e9),
        network=(tensor + expert + data) * LINK,
        host=host + stepped if spec.memory.cpu_offload else 0.0,
        intensity=each * work.computed / moved,
        ridge=peak / (card.memory_gbps * 1e9),
    )
    reached = flops / world / peak / step.total
    return EstimatedSpeed(step, limits, tokens, flops, reached)


def _unit_s(work: ModelWork, compute: str, card: GpuCard) -> float:
    """Return the seconds of a token on one card at its peak: with fp8, what is computed in bf16
    takes longer."""
    small = work.in_fp8 if compute == "fp8" else work.computed
    peak, of_others = card.peak(compute), card.peak("bf16") or card.peak("fp16")
    assert peak is not None
    assert of_others is not None
    return small / peak + (work.computed - small) / of_others


def _moved(spec: RunSpec, world: int) -> float:
    """Return the bytes that a GPU's memory reads and writes in a step at least: parameters once
    forward and twice backward per micro-batch, gradients once, activations written and read, and
    those of the optimizer."""
    found, compute = degrees(spec.parallel, world), BYTES[spec.precision.compute]
    count, _ = micro_batches(spec, world)
    whole, kept = sum(_computed(spec, found)), kept_by_blocks(spec, world)
    passes = 2 + 2 * _trained_share(spec)  # forward, backward; once more with gradients
    stepped = 0.0 if spec.memory.cpu_offload else _stepped(spec, found)
    return count * (passes * whole * compute + 2 * kept) + stepped


def _stepped(spec: RunSpec, found: ParallelDegrees) -> float:
    """Return the bytes that the optimizer moves on a rank."""
    return _of_optimizer(spec) * _held(spec, found) * _trained_share(spec)


def _stepped_s(spec: RunSpec, found: ParallelDegrees, card: GpuCard) -> float:
    rate = HOST_MEMORY_GBPS if spec.memory.cpu_offload else card.memory_gbps
    return _stepped(spec, found) / (rate * 1e9)


def _of_optimizer(spec: RunSpec) -> int:
    """Return the bytes that it moves per element: parameter, gradient and moments are read, all but
    the gradient written."""
    return BYTES[spec.precision.master] * (3 + 2 * moments(spec.optim))


def _trained_share(spec: RunSpec) -> float:
    if spec.lora is None:
        return 1.0
    model = decoder_of(spec)
    return trained_count(model, spec.lora) / elements(parameters(model))


def _computed(spec: RunSpec, found: ParallelDegrees) -> tuple[float, float]:
    """Return the numbers of parameters with which a rank computes; the second is that of experts,
    which ranks share."""
    if isinstance(spec.model, ImageSpec):
        return work_of(spec).parameters, 0.0
    every = [*parameters(spec.model)]
    stacks = elements(one for one in every if one.is_stack)
    others = elements(every) - stacks
    return others / (found.pipeline * found.tensor), stacks / found.expert


def _held(spec: RunSpec, found: ParallelDegrees) -> float:
    """Return the parameters that a rank holds."""
    others, stacks = _computed(spec, found)
    return others / found.shard + stacks / found.expert_shard


def _hides(spec: RunSpec, found: ParallelDegrees, count: int) -> float:
    """Return the share of the computation that overlaps with communication of data-parallel ranks:
    all of it if layers are gathered, else the backward pass of the micro-batches that reduce."""
    if found.pipeline > 1:
        return 0.0  # torch's stages gather before, and reduce after all micro-batches
    if spec.parallel.zero > 1 and (found.shard > 1 or spec.memory.cpu_offload):
        return 1.0
    return 2 / 3 / (1 if not spec.parallel.no_sync else count)


def _data_s(spec: RunSpec, world: int, card: GpuCard) -> float:
    """Return the seconds to gather parameters and reduce gradients, in rings."""
    found = degrees(spec.parallel, world)
    gathers, reduces = _times_over(spec, world)
    gathered = gathers * BYTES[spec.precision.compute]
    reduced = reduces * BYTES[spec.precision.reduce] * _trained_share(spec)

    def rings_s(whole: float, inner: int, shard: int, replicate: int) -> float:
        among = _ring_s(spec, card, shard, inner, whole * (gathered + reduced))
        copies = 2 * reduced * whole / shard
        return among + _ring_s(spec, card, replicate, inner * shard, copies)

    others, stacks = _computed(spec, found)
    return rings_s(others, found.tensor, found.shard, found.replicate) + rings_s(
        stacks, found.expert, found.expert_shard, found.expert_replicate
    )


def _host_s(spec: RunSpec, world: int, card: GpuCard) -> float:
    """Return the seconds to copy a rank's part of the parameters from the host's memory each time
    that it is gathered, and gradients to it each time that they are reduced: both ways at once,
    both in the optimizer's format, as FSDP2 copies them."""
    if not spec.memory.cpu_offload:
        return 0.0
    gathers, reduces = _times_over(spec, world)
    part = BYTES[spec.precision.master] * _held(spec, degrees(spec.parallel, world))
    return part * max(gathers, reduces * _trained_share(spec)) / (card.host_gbps * 1e9)


def _times_over(spec: RunSpec, world: int) -> tuple[int, int]:
    """Return how often in a step parameters are gathered, and gradients reduced."""
    found, parallel = degrees(spec.parallel, world), spec.parallel
    count, _ = micro_batches(spec, world)
    gathers = 1 if parallel.zero == 1 or found.pipeline > 1 else count * (parallel.zero - 1)
    reduces = count if not parallel.no_sync and found.pipeline == 1 else 1
    return gathers, reduces


def _tensor_s(spec: RunSpec, world: int, card: GpuCard) -> float:
    """Return the seconds to gather and scatter activations: before and after attention and the
    perceptron, forward and backward."""
    found, size = degrees(spec.parallel, world), BYTES[spec.precision.compute]
    if found.tensor == 1:
        return 0.0
    model = decoder_of(spec)
    count, samples = micro_batches(spec, world)
    whole = of_input(model, ActivationBatch(samples, size, 1))
    blocks = model.layers / found.pipeline
    return _ring_s(spec, card, found.tensor, 1, 8 * count * blocks * whole)


def _expert_s(spec: RunSpec, world: int, card: GpuCard) -> float:
    """Return the seconds to send tokens to their experts and back, forward and backward; each rank
    sends its own."""
    found, experts = degrees(spec.parallel, world), experts_of(spec.model)
    if experts is None or found.expert == 1:
        return 0.0
    model, (count, samples) = decoder_of(spec), micro_batches(spec, world)
    rows = experts.top_k * of_input(
        model, ActivationBatch(samples, BYTES[spec.precision.compute], 1)
    )
    rate = card.nvlink_gbps if found.expert <= spec.launch.nproc_per_node else card.network_gbps
    sent = 4 * count * model.layers * rows * (found.expert - 1) / found.expert
    return sent / (rate * 1e9 * LINK)


def _ring_s(spec: RunSpec, card: GpuCard, ranks: int, inner: int, size: float) -> float:
    """Return the seconds to gather `size` bytes among `ranks` that are `inner` apart. Bytes enter a
    node once, by the network links of all its ranks."""
    if ranks == 1:
        return 0.0
    per_node = spec.launch.nproc_per_node
    here = min(ranks, max(1, per_node // inner))
    rate = card.nvlink_gbps
    if ranks > here:
        rate = min(rate, here * card.network_gbps)
    return (ranks - 1) / ranks * size / (rate * 1e9 * LINK)
