"""Pipeline parallelism: consecutive layers of a model are on different ranks, and micro-batches
pass through them."""

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


def parts_of_rank(layers: int, parallel: ParallelSpec, mesh: DeviceMesh) -> list[LayerRange]:
    """Return the parts of the model that this rank of a pipeline has, in order."""
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
    device; those that get gradients require them."""

    tokens: Tensor  # (micro-batch, time), integers
    features: Tensor  # (micro-batch, the positions of this rank, width)
    losses: Tensor  # (micro-batch, time)


class PipelineExecutor:
    """Computes the gradients of a step in a pipeline. Its calls are collectives of the ranks of
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
        mesh: the ranks of the pipeline, a dimension of its own.
        micro_batches: number of micro-batches of a step.
        loss_of: computes the mean loss of a micro-batch from the losses of its tokens and the
            targets.
        """
        self._parts, self._mesh, self._timed = parts, mesh, timed
        rank, ranks = mesh.get_local_rank(), mesh.size()
        stages = [
            _stage(part, rank + number * ranks, ranks * len(parts), shapes, mesh)
            for number, part in enumerate(parts)
        ]
        self._schedule = _schedule(parallel, stages, micro_batches, loss_of)
        takes = inspect.signature(self._schedule.step).parameters  # not before torch 2.10
        options = {"return_outputs": False} if "return_outputs" in takes else {}
        self._options: dict[str, Any] = options
        self._shared = shared_by_ends(parts)

    def __call__(self, inputs: Tensor, targets: Tensor, documents: Tensor | None) -> Tensor:
        """Add the gradients of this rank's share of a step.

        Args:
            inputs, targets, documents: (share, time), as of `DecoderModel`.

        Returns:
            The mean loss of the share, on all ranks of the pipeline.
        """
        with self._timed("compute"):
            return self._step(inputs, targets, documents)

    def outputs(self, inputs: Tensor, targets: Tensor, documents: Tensor | None) -> Tensor:
        """Return the losses of the tokens, (share, time), on all ranks of the pipeline; without
        gradients."""
        taken, wanted = self._given(inputs, targets, documents)
        found = self._schedule.eval(*taken, **wanted)
        losses = found if self._is_last else torch.zeros(targets.shape, device=targets.device)
        dist.all_reduce(losses, group=self._mesh.get_group())
        return losses

    @property
    def _is_last(self) -> bool:
        return self._parts[-1].part.is_last

    def _step(self, inputs: Tensor, targets: Tensor, documents: Tensor | None) -> Tensor:
        losses: list[Tensor] = []
        taken, wanted = self._given(inputs, targets, documents)
        self._schedule.step(*taken, losses=losses, **self._options, **wanted)
        for parameter in self._shared:
            self._add_other_end(parameter)
        zero = torch.zeros((), device=inputs.device)
        loss = torch.stack(losses).mean().detach() if self._is_last else zero
        dist.all_reduce(loss, group=self._mesh.get_group())
        return loss

    def _given(
        self, inputs: Tensor, targets: Tensor, documents: Tensor | None
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return the arguments that a schedule passes to the stages of this rank."""
        taken = (inputs,) if self._parts[0].part.is_first else ()
        both = {"target": targets, "targets": targets}  # for the loss, and for the model
        named: dict[str, Any] = both if self._is_last else {}
        return taken, named if documents is None else {**named, "documents": documents}

    def _add_other_end(self, parameter: Tensor) -> None:
        """Sum the gradient of the shared parameter over the first and the last stage."""
        gradient = parameter.grad
        assert gradient is not None
        mine = local(gradient)
        theirs = torch.empty_like(mine)
        group, last = self._mesh.get_group(), self._mesh.size() - 1
        peer = dist.get_global_rank(group, last if self._mesh.get_local_rank() == 0 else 0)
        operations = [
            dist.P2POp(dist.isend, mine, peer, group),
            dist.P2POp(dist.irecv, theirs, peer, group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        mine.add_(theirs)


def shared_by_ends(parts: Sequence[DecoderModel]) -> list[Tensor]:
    """Return the trained parameters of this rank that the other end of its pipeline has as well."""
    first, last = parts[0], parts[-1]
    if first.part.is_first == last.part.is_last:  # neither end, or the whole
        return []
    tied = first.tied if first.part.is_first else last.tied
    return [tied] if tied is not None and tied.requires_grad else []


def _stage(
    model: DecoderModel, number: int, stages: int, shapes: PipelineShapes, mesh: DeviceMesh
) -> PipelineStage:
    takes = shapes.tokens if model.part.is_first else shapes.features
    gives = shapes.losses if model.part.is_last else shapes.features
    group, device = mesh.get_group(), torch.device(mesh.device_type)
    return PipelineStage(
        model, number, stages, device, input_args=takes, output_args=gives, group=group
    )


def _schedule(
    parallel: ParallelSpec, stages: list[PipelineStage], micro_batches: int, loss_of: LossOf
) -> ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B:
    if parallel.schedule == "interleaved":
        return ScheduleInterleaved1F1B([*stages], micro_batches, loss_of)
    kind = ScheduleGPipe if parallel.schedule == "gpipe" else Schedule1F1B
    return kind(stages[0], micro_batches, loss_of)
