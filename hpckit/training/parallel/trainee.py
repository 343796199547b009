"""The model of a run as this rank has it, and how the gradients of a step come about."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from hpckit.run.batch import micro_batch_count
from hpckit.run.expertcheck import experts_of
from hpckit.run.levercheck import masks_attention
from hpckit.run.spec import ParallelSpec, RunSpec, StartSpec
from hpckit.training.attention import attention_in_use, choose_attention
from hpckit.training.compiling import compile_blocks
from hpckit.training.fp8 import use_fp8
from hpckit.training.lora import adapt
from hpckit.training.loss_scale import LossScale
from hpckit.training.models.building import build, materialise
from hpckit.training.models.decoder import Decoder, Part
from hpckit.training.parallel.experts import balance, share_experts
from hpckit.training.parallel.mesh import data_mesh, has, make_expert_mesh, size_of
from hpckit.training.parallel.norm import clip_gradients
from hpckit.training.parallel.pipeline import (
    LossOf,
    Pipeline,
    Shapes,
    assemble,
    parts_of_rank,
    shared_by_ends,
)
from hpckit.training.parallel.sharding import (
    DTYPES,
    before_micro_batch,
    let_go,
    shard,
    shard_layers,
)
from hpckit.training.parallel.tensor import divide
from hpckit.training.parts import Timed, untimed
from hpckit.training.recompute import recompute
from hpckit.training.starting import begin

log = logging.getLogger(__name__)


class Trainee:
    """A model that is spread over the ranks, and filled with its first parameters."""

    def __init__(self, cfg: RunSpec, mesh: DeviceMesh, device: torch.device) -> None:
        self._cfg, self._mesh, self._device = cfg, mesh, device
        self.attention = self._choose_attention()
        """The kernels that compute it."""
        self.loss_scale = LossScale(is_used=cfg.precision.compute == "fp16")
        self.parts = [self._build(part) for part in self._parts()]
        """Those of this rank: one, or in a pipeline as many as it has stages."""
        self.module = assemble(self.parts)
        """All of it, by the names of the whole model: for optimizers and checkpoints."""

    def gradients(self, share: int, loss_of: LossOf, timed: Timed = untimed) -> Gradients:
        """What computes those of a step of which this rank takes `share` samples.

        Args:
            loss_of: the mean loss of a micro-batch, from the losses of its tokens and the targets.
            timed: told when forward and backward passes begin and end.
        """
        scale = self.loss_scale
        passes = self._passes(
            share, lambda each, targets: loss_of(each, targets) * scale.value, timed
        )
        return Gradients(passes, self.parts, scale)

    def begin(self, start: StartSpec) -> dict[str, Any]:
        """Take over the parameters of another model, as of `hpckit.training.starting`."""
        return begin(self.module, self._cfg, start)

    def clip(self, limit: float) -> Tensor:
        """Scale the gradients back, and down to a norm of `limit`; the norm before. Collective."""
        return clip_gradients(
            self.module.parameters(),
            limit,
            stages=size_of(self._mesh, "pipeline"),
            shared=shared_by_ends(self.parts),
            device=self._device,
            scale=self.loss_scale.value,
        )

    def balance(self) -> dict[str, Tensor]:
        """Have experts that got fewer tokens than others in this step get more in the next. Metrics
        of how even it was; none without experts. Collective."""
        experts = experts_of(self._cfg.model)
        if experts is None:
            return {}
        return {"fullest_expert": balance(self.module, experts.balance_rate)}

    def _passes(self, share: int, loss_of: LossOf, timed: Timed) -> Accumulation | Pipeline:
        cfg = self._cfg
        parts = micro_batch_count(share, cfg.train.micro_batch)
        if not has(self._mesh, "pipeline"):
            return Accumulation(self.parts[0], cfg.parallel, parts, loss_of, timed)
        shapes = self._shapes(share // parts)
        mesh = self._mesh["pipeline"]
        return Pipeline(self.parts, cfg.parallel, mesh, shapes, parts, loss_of, timed)

    def _choose_attention(self) -> str:
        cfg = self._cfg
        choose_attention(cfg.memory.attention)
        ranks = size_of(self._mesh, "tensor")
        dtype = DTYPES[cfg.precision.compute]
        found = attention_in_use(
            cfg.model,
            cfg.train.micro_batch,
            ranks,
            dtype,
            self._device,
            masked=masks_attention(cfg),
        )
        log.info("attention: %s", found)
        return found

    def _parts(self) -> list[Part]:
        layers = self._cfg.model.layers
        if not has(self._mesh, "pipeline"):
            return [Part.whole(layers)]
        return parts_of_rank(layers, self._cfg.parallel, self._mesh["pipeline"])

    def _build(self, part: Part) -> Decoder:
        cfg = self._cfg
        model = build(cfg.model, part, DTYPES[cfg.precision.master])
        if has(self._mesh, "tensor"):
            divide(model, self._mesh["tensor"])
        if cfg.lora:
            adapt(model, cfg.model, cfg.lora)
        self._pull_levers(model)
        offload = cfg.memory.offload
        mesh = data_mesh(self._mesh)
        if cfg.parallel.expert > 1:
            self._share_experts(model)
        shard(model, model.blocks.values(), mesh, cfg.parallel, cfg.precision, offload=offload)
        materialise(model, torch.device("cpu") if offload else self._device, cfg.train.seed)
        return model

    def _share_experts(self, model: Decoder) -> None:
        cfg = self._cfg
        mesh = make_expert_mesh(self._mesh.device_type, cfg.parallel)
        layers = share_experts(model, mesh["expert"])
        shard_layers(
            layers, data_mesh(mesh), cfg.parallel, cfg.precision, offload=cfg.memory.offload
        )

    def _pull_levers(self, model: Decoder) -> None:
        """Those that change how a model computes, and none of its names."""
        memory, blocks = self._cfg.memory, model.blocks.values()
        if self._cfg.precision.compute == "fp8":
            use_fp8(blocks)
        recompute(blocks, memory.recompute)
        if memory.compile:
            compile_blocks(blocks)
        if model.part.is_last:
            model.unembedding.chunks = memory.loss_chunks

    def _shapes(self, micro_batch: int) -> Shapes:
        size, dtype = self._cfg.model, DTYPES[self._cfg.precision.compute]
        ranks = size_of(self._mesh, "tensor")
        with torch.device("meta"):
            return Shapes(
                torch.empty(micro_batch, size.seq_len, dtype=torch.int64),
                torch.empty(
                    micro_batch, size.seq_len // ranks, size.width, dtype=dtype, requires_grad=True
                ),
                torch.empty(micro_batch, size.seq_len, requires_grad=True),
            )


class Gradients:
    """Computes those of a step, of this rank's share of it."""

    def __init__(
        self, passes: Accumulation | Pipeline, parts: Iterable[Decoder], scale: LossScale
    ) -> None:
        self._passes, self._parts, self._scale = passes, parts, scale

    def __call__(self, inputs: Tensor, targets: Tensor, documents: Tensor | None = None) -> Tensor:
        """Add them to what the parameters have.

        Args:
            inputs, targets, documents: (share, time), as of `Decoder`.

        Returns:
            The mean loss of the share.
        """
        return self._passes(inputs, targets, documents) / self._scale.value

    @torch.no_grad()
    def losses(self, inputs: Tensor, targets: Tensor, documents: Tensor | None = None) -> Tensor:
        """The losses of the tokens alone, (share, time), in the same micro-batches; on every rank
        of a pipeline."""
        found = self._passes.losses(inputs, targets, documents)
        let_go(self._parts)
        return found


class Accumulation:
    """Computes the gradients of a step micro-batch by micro-batch."""

    def __init__(
        self,
        model: Decoder,
        parallel: ParallelSpec,
        micro_batches: int,
        loss_of: LossOf,
        timed: Timed,
    ) -> None:
        self._model, self._parallel, self._timed = model, parallel, timed
        self._micro_batches, self._loss_of = micro_batches, loss_of

    def __call__(self, inputs: Tensor, targets: Tensor, documents: Tensor | None) -> Tensor:
        """As of `Gradients`."""
        assert isinstance(self._model, FSDPModule)
        parts, losses = self._micro_batches, []
        given = self._micro(inputs, targets, documents)
        for number, (taken, wanted, inside) in enumerate(given, start=1):
            before_micro_batch(self._model, self._parallel, is_last=number == parts)
            with self._timed("forward"):
                loss = self._loss_of(self._model(taken, wanted, inside), wanted)
            with self._timed("backward"):
                (loss / parts).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def losses(self, inputs: Tensor, targets: Tensor, documents: Tensor | None) -> Tensor:
        """As of `Gradients`."""
        return torch.cat([self._model(*given) for given in self._micro(inputs, targets, documents)])

    def _micro(
        self, inputs: Tensor, targets: Tensor, documents: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """What the micro-batches are given."""
        parts = self._micro_batches
        inside = [None] * parts if documents is None else documents.chunk(parts)
        return zip(inputs.chunk(parts), targets.chunk(parts), inside, strict=True)
