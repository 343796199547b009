"""Pipeline parallelism: each rank has some consecutive layers of the model, and micro-batches pass
through the ranks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from hpckit.config.parallel_degrees import blocks_of_stages, stage_count
from hpckit.config.spec import ParallelSpec
from hpckit.trainer.models.decoder import DecoderModel, LayerRange
from hpckit.trainer.parallel.local_tensor import local
from hpckit.trainer.timing.step_phases import Timed

LossOf = Callable[[Tensor, Tensor], Tensor]
"""A function from what a model returns for a micro-batch and the targets to the mean loss."""


def parts_of_rank(layers: int, parallel: ParallelSpec, mesh: DeviceMesh) -> list[LayerRange]:
    """Return the ranges of layers that this rank of the pipeline has, in order."""
    blocks = blocks_of_stages(layers, stage_count(parallel, mesh.size()))
    return [
        LayerRange(some.start, some.stop, layers)
        for some in blocks[mesh.get_local_rank() :: mesh.size()]
    ]


def assemble(parts: Sequence[DecoderModel]) -> nn.Module:
    """Return a rank's parts of a model as one module, with the parameter names of the whole
    model."""
    if len(parts) == 1:
        return parts[0]
    blocks = {name: block for part in parts for name, block in part.blocks.items()}
    whole = nn.Module()
    whole.add_module("blocks", nn.ModuleDict(blocks))
    for part in parts:
        for name, child in part.named_children():
            if name != "blocks":
                whole.add_module(name, child)
    return whole


@dataclass(frozen=True)
class PipelineShapes:
    """The shapes of what passes through a pipeline for one micro-batch, as tensors on the meta
    device; those with gradients have requires_grad set."""

    tokens: Tensor
    """(micro-batch, time), integers."""
    features: Tensor
    """(micro-batch, the positions of this rank, width)."""
    losses: Tensor
    """(micro-batch, time)."""


class PipelineExecutor:
    """Computes the gradients of a step in a pipeline. Each call is a collective of the ranks of
    `mesh`."""

    def __init__(
        self,
        parts: Sequence[DecoderModel],
        parallel: ParallelSpec,
        mesh: DeviceMesh,
        shapes: PipelineShapes,
        micro_batches: int,
        loss_of: LossOf,
        timed: Timed,
    ) -> None:
        """Args:
        parts: the parts of this rank, as of `parts_of_rank`.
        mesh: the submesh of the dimension "pipeline".
        micro_batches: number of micro-batches of a step.
        loss_of: is called with the losses of the tokens of a micro-batch and the targets.
        timed: counts the time of a block as a phase of the step.
        """
        self._parts, self._mesh, self._timed = parts, mesh, timed
        rank, ranks = mesh.get_local_rank(), mesh.size()
        stages = [
            _stage(part, rank + number * ranks, ranks * len(parts), shapes, mesh)
            for number, part in enumerate(parts)
        ]
        self._schedule = _schedule(parallel, stages, micro_batches, loss_of)
        has_option = "return_outputs" in inspect.signature(self._schedule.step).parameters
        # torch has the option since 2.10
        self._options: dict[str, Any] = {"return_outputs": False} if has_option else {}
        self._shared = shared_by_ends(parts)

    def __call__(self, inputs: Tensor, targets: Tensor, documents: Tensor | None) -> Tensor:
        """Add the gradients of this rank's samples of a step to those of the parameters.

        Args:
            inputs, targets, documents: (local batch, time), as of `DecoderModel`.

        Returns:
            The mean loss of the samples, on all ranks of the pipeline.
        """
        with self._timed("compute"):
            return self._step(inputs, targets, documents)

    def outputs(self, inputs: Tensor, targets: Tensor, documents: Tensor | None) -> Tensor:
        """Return the losses of the tokens, (local batch, time), on all ranks of the pipeline;
        without gradients."""
        positional, named = self._arguments(inputs, targets, documents)
        found = self._schedule.eval(*positional, **named)
        losses = found if self._is_last else torch.zeros(targets.shape, device=targets.device)
        dist.all_reduce(losses, group=self._mesh.get_group())
        return losses

    @property
    def _is_last(self) -> bool:
        return self._parts[-1].part.is_last

    def _step(self, inputs: Tensor, targets: Tensor, documents: Tensor | None) -> Tensor:
        losses: list[Tensor] = []
        positional, named = self._arguments(inputs, targets, documents)
        self._schedule.step(*positional, losses=losses, **self._options, **named)
        for parameter in self._shared:
            self._sum_over_ends(parameter)
        zero = torch.zeros((), device=inputs.device)
        loss = torch.stack(losses).mean().detach() if self._is_last else zero
        dist.all_reduce(loss, group=self._mesh.get_group())
        return loss

    def _arguments(
        self, inputs: Tensor, targets: Tensor, documents: Tensor | None
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return the positional and named arguments that the schedule passes to the stages of this
        rank."""
        positional = (inputs,) if self._parts[0].part.is_first else ()
        both = {"target": targets, "targets": targets}  # for the loss, and for the model
        named: dict[str, Any] = both if self._is_last else {}
        return positional, named if documents is None else {**named, "documents": documents}

    def _sum_over_ends(self, parameter: Tensor) -> None:
        """Sum the gradient of the shared parameter over the first and the last stage."""
        gradient = parameter.grad
        assert gradient is not None
        own = local(gradient)
        received = torch.empty_like(own)
        group, last = self._mesh.get_group(), self._mesh.size() - 1
        peer = dist.get_global_rank(group, last if self._mesh.get_local_rank() == 0 else 0)
        operations = [
            dist.P2POp(dist.isend, own, peer, group),
            dist.P2POp(dist.irecv, received, peer, group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        own.add_(received)


def shared_by_ends(parts: Sequence[DecoderModel]) -> list[Tensor]:
    """Return the trained parameters of this rank that the other end of the pipeline has as well,
    which is the tied embedding."""
    first, last = parts[0], parts[-1]
    if first.part.is_first == last.part.is_last:  # this rank has neither end, or both
        return []
    tied = first.tied if first.part.is_first else last.tied
    return [tied] if tied is not None and tied.requires_grad else []


def _stage(
    model: DecoderModel, number: int, stages: int, shapes: PipelineShapes, mesh: DeviceMesh
) -> PipelineStage:
    inputs = shapes.tokens if model.part.is_first else shapes.features
    outputs = shapes.losses if model.part.is_last else shapes.features
    group, device = mesh.get_group(), torch.device(mesh.device_type)
    return PipelineStage(
        model, number, stages, device, input_args=inputs, output_args=outputs, group=group
    )


def _schedule(
    parallel: ParallelSpec, stages: list[PipelineStage], micro_batches: int, loss_of: LossOf
) -> ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B:
    if parallel.schedule == "interleaved":
        return ScheduleInterleaved1F1B([*stages], micro_batches, loss_of)
    kind = ScheduleGPipe if parallel.schedule == "gpipe" else Schedule1F1B
    return kind(stages[0], micro_batches, loss_of)
