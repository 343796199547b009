"""The categories and moments of a GPU's memory, for any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hpckit.config.batch_size import micro_batch_count, share_of_rank
from hpckit.config.parallel_degrees import is_wrapped
from hpckit.config.spec import OptimSpec, RunSpec
from hpckit.planner.model.parameter_shapes import ParameterShape, elements

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
"""Bytes of a number by precision; with fp8, all that is kept is bf16 except for the inputs of
linear layers."""


@dataclass(frozen=True)
class MemoryUse:
    """Bytes at one moment."""

    parameters: int
    """This rank's part of the parameters, as the optimizer has them."""
    gathered: int
    """Parameters gathered from the ranks that share a copy, in the format of computation."""
    gradients: int
    optimizer: int
    """Moments, momenta, and an average of the parameters."""
    activations: int
    logits: int
    """Logits with what the loss computes from them."""
    buffers: int
    """Short-lived memory: gradients in transit, micro-batches passed between pipeline stages, and
    what the optimizer computes with."""

    @property
    def total(self) -> int:
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Return the bytes by name, in the order of definition."""
        return asdict(self)


@dataclass(frozen=True)
class FsdpBuffers:
    """Buffers of FSDP2 beside a rank's parameters and gradients; zero where it is not needed."""

    copy: int
    """Bytes of the copy of a parameter for computation."""
    reducing: int
    """Bytes of a gradient while it is reduced."""
    gathers_layers: bool
    """Whether layers are gathered one after the other instead of all at once."""

    @property
    def layer(self) -> int:
        """Return the bytes of a parameter that is gathered with its layer."""
        return self.copy if self.gathers_layers else 0


def wrapping(spec: RunSpec, world: int, *, gathers_layers: bool) -> FsdpBuffers:
    if not is_wrapped(spec, world):
        return FsdpBuffers(0, 0, gathers_layers=False)
    compute = BYTES[spec.precision.compute]
    return FsdpBuffers(compute, compute + BYTES[spec.precision.reduce], gathers_layers)


@dataclass(frozen=True)
class MemoryFootprint:
    """The memory of a rank during a step, by moment: `loss`, when the backward pass begins;
    `backward`, in the last block before activations become fewer; `reduced`, when gradients are
    complete; `optimizer`, while parameters are updated."""

    moments: dict[str, MemoryUse]

    @property
    def peak(self) -> MemoryUse:
        return self.moments[self.at]

    @property
    def at(self) -> str:
        """Return the moment that needs most."""
        return max(self.moments, key=lambda name: self.moments[name].total)


def micro_batches(spec: RunSpec, world: int) -> tuple[int, int]:
    """Return how many micro-batches a rank takes in a step, and the samples of each."""
    share = share_of_rank(spec, world)
    count = micro_batch_count(share, spec.train.micro_batch)
    return count, share // count


def moments(optim: OptimSpec) -> int:
    """Return the numbers that the optimizer keeps of a parameter, except Muon's matrices."""
    return 2 if optim.kind != "sgd" else 1 if optim.momentum else 0


def kept_by_optimizer(
    spec: RunSpec,
    some: Sequence[ParameterShape],
    tensor: int = 1,
    shard: int = 1,
    expert: int = 1,
    *,
    are_inside: bool = False,
) -> int:
    """Return the number of values of the optimizer on the rank that has most: for each parameter
    two with AdamW and one with SGD's momentum, one with Muon for those of a matrix inside a block,
    and those of an average, which always has fp32."""
    optim = spec.optim
    ranks = tensor, shard, expert
    matrices = [one for one in some if len(one.shape) > 1]
    by_muon = matrices if optim.kind == "muon" and are_inside else []
    average = 0 if optim.ema_decay is None else BYTES["fp32"] // BYTES[spec.precision.master]
    each = moments(optim) + average
    return each * elements(some, *ranks) - elements(by_muon, *ranks)
