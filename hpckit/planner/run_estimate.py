"""The estimate of a run before it starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hpckit.config.entry_points import IMAGES, LANGUAGE_MODEL
from hpckit.config.parallel_degrees import describe_layout
from hpckit.config.rules.violations import nodes_of_generation
from hpckit.config.spec import RunSpec
from hpckit.planner.assumptions import NODE_MTBF_HOURS
from hpckit.planner.goodput.save_interval import Goodput, goodput, goodput_at
from hpckit.planner.gpu_cards import GpuCard
from hpckit.planner.memory.decoder_memory import checkpoint_bytes, footprint
from hpckit.planner.memory.layout_recommendation import (
    LayoutChoice,
    error_of,
    has_headroom,
    recommend,
    recomputed,
    room,
)
from hpckit.planner.memory.memory_footprint import MemoryFootprint, micro_batches
from hpckit.planner.model.model_work import work_of
from hpckit.planner.step_time import EstimatedSpeed, speed


@dataclass(frozen=True)
class Assumptions:
    """The assumptions that no config contains."""

    utilisation: float
    """Share of a card's peak FLOP/s that is reached while it computes."""
    node_mtbf_hours: float | None
    """Hours between two failures of one node; None: from `checkpoint.mtbf_hours` of the job, or the
    usual value."""
    storage_gbps: float
    """GB/s of the checkpoint store, for all ranks together."""


@dataclass(frozen=True)
class RunEstimate:
    """The estimate of a run on a number of nodes with one kind of card."""

    nodes: int
    world: int
    layout: str
    """The parallel layout as text for people."""
    parameters: int
    trained: int
    """Trained parameters: all, or those of adapters."""
    unit: str
    """What counts as a token: "token"; for images, "sample"."""
    flops_per_token: int
    """Operations per token, forward and backward, that the model needs."""
    micro_batches: int
    samples: int
    """Samples of each micro-batch."""
    compute: str
    """Format of computation."""
    card: GpuCard
    room: int
    """Bytes of a card's memory that are available to tensors."""
    footprint: MemoryFootprint
    error: float
    """Share by which memory may exceed its estimate."""
    recomputed: MemoryFootprint
    """The footprint with full recompute of blocks."""
    checkpoint: int
    """Bytes of an uncompressed checkpoint."""
    speed: EstimatedSpeed | None
    """The speed. None: the card cannot compute in this format."""
    goodput: Goodput
    """The goodput at the best save interval."""
    configured: Goodput | None
    """The goodput with the save policy of `checkpoint`; None: it leaves the interval to the run, or
    the goodput is not known."""
    choice: LayoutChoice | None
    """The simplest layout that fits with headroom; None: there is none on so many cards."""
    assumptions: Assumptions

    @property
    def fits(self) -> bool:
        return self.footprint.peak.total <= self.room

    @property
    def has_headroom(self) -> bool:
        """Whether the run fits even if the estimate is wrong by its error."""
        return has_headroom(self.footprint.peak.total, self.error, self.room)

    def record(self) -> dict[str, Any]:
        """Return the estimate as plain data: bytes, seconds."""
        return {
            "nodes": self.nodes,
            "ranks": self.world,
            "layout": self.layout,
            "parameters": self.parameters,
            "trained": self.trained,
            "unit": self.unit,
            "flops_per_token": self.flops_per_token,
            "micro_batches": self.micro_batches,
            "samples": self.samples,
            "compute": self.compute,
            "card": {**vars(self.card), "tflops": dict(self.card.tflops)},
            "fits": self.fits,
            "headroom": self.has_headroom,
            "memory": {
                "room": self.room,
                "error": self.error,
                "peak": self.footprint.peak.total,
                "at": self.footprint.at,
                "moments": _moments(self.footprint),
                "recomputed": _moments(self.recomputed),
            },
            "checkpoint": self.checkpoint,
            "speed": None if self.speed is None else _speed(self.speed),
            "goodput": asdict(self.goodput),
            "configured": None if self.configured is None else asdict(self.configured),
            "choice": None if self.choice is None else asdict(self.choice),
            "assumptions": asdict(self.assumptions),
        }


def is_known(spec: RunSpec) -> bool:
    """Whether the run trains a model of `conf/model/`."""
    return spec.entry in (LANGUAGE_MODEL, IMAGES)


def estimate(spec: RunSpec, card: GpuCard, assumed: Assumptions) -> RunEstimate:
    """Estimate a run on the nodes that it starts with."""
    work = work_of(spec)
    nodes = nodes_of_generation(spec, 0)
    world = nodes * spec.launch.nproc_per_node
    size = checkpoint_bytes(spec)
    count, samples = micro_batches(spec, world)
    peak = card.peak(spec.precision.compute)
    timed = None if peak is None else speed(spec, world, card, assumed.utilisation)
    best = goodput(
        3600 * _mtbf_hours(spec, nodes, assumed),
        stall_s=size / world / (card.host_gbps * 1e9),  # each rank copies its part to its host
        durable_s=size / (assumed.storage_gbps * 1e9),
    )
    return RunEstimate(
        nodes=nodes,
        world=world,
        layout=describe_layout(spec.parallel, world),
        parameters=work.parameters,
        trained=work.trained,
        unit=work.unit,
        flops_per_token=work.flops,
        micro_batches=count,
        samples=samples,
        compute=spec.precision.compute,
        card=card,
        room=room(card),
        footprint=footprint(spec, world),
        error=error_of(spec),
        recomputed=footprint(recomputed(spec), world),
        checkpoint=size,
        speed=timed,
        goodput=best,
        configured=as_configured(spec, best, timed),
        choice=recommend(spec, nodes, card),
        assumptions=assumed,
    )


def as_configured(spec: RunSpec, best: Goodput, found: EstimatedSpeed | None) -> Goodput | None:
    """Return the goodput with the configured save interval; None: none is configured, or it is one
    of steps and the speed is not known."""
    every_steps, every_minutes = spec.checkpoint.every_steps, spec.checkpoint.every_minutes
    if every_minutes is not None:
        interval_s = 60 * every_minutes
    elif every_steps is not None and found is not None:
        interval_s = every_steps * found.step.total
    else:
        return None
    return goodput_at(interval_s, best.mtbf_s, best.stall_s, best.durable_s)


def _mtbf_hours(spec: RunSpec, nodes: int, assumed: Assumptions) -> float:
    """Return the mean hours between failures of the whole job."""
    if assumed.node_mtbf_hours is None and spec.checkpoint.mtbf_hours is not None:
        return spec.checkpoint.mtbf_hours
    return (assumed.node_mtbf_hours or NODE_MTBF_HOURS) / nodes


def _moments(found: MemoryFootprint) -> dict[str, Any]:
    return {
        name: {**memory.parts(), "total": memory.total} for name, memory in found.moments.items()
    }


def _speed(found: EstimatedSpeed) -> dict[str, Any]:
    return {
        "step_s": found.step.total,
        "parts_s": found.step.parts(),
        "tokens": found.tokens,
        "tokens_per_s": found.tokens_per_s,
        "flops": found.flops,
        "utilisation": found.utilisation,
        "roofline": {**asdict(found.roofline), "bound": found.roofline.bound},
    }
