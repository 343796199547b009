"""The parallel model of a run on this rank, and the computation of the gradients of a step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from hpckit.config.batch_size import micro_batch_count
from hpckit.config.parallel_degrees import is_wrapped
from hpckit.config.rules.experts import experts_of
from hpckit.config.rules.model import decoder_of
from hpckit.config.rules.precision_and_memory import masks_attention
from hpckit.config.spec import ParallelSpec, ResnetSpec, RunSpec, StartSpec
from hpckit.trainer.device.attention_kernel import attention_in_use, choose_attention
from hpckit.trainer.device.block_compilation import compile_blocks
from hpckit.trainer.initial_weights import load_initial_weights
from hpckit.trainer.memory.activation_recompute import recompute
from hpckit.trainer.models.base_model import Model
from hpckit.trainer.models.decoder import DecoderModel, LayerRange
from hpckit.trainer.models.lora import adapt, is_adapter
from hpckit.trainer.models.model_builder import allocate, build, draw_parameters
from hpckit.trainer.parallel.data_parallel import (
    DTYPES,
    before_micro_batch,
    reshard_models,
    shard,
    shard_layers,
)
from hpckit.trainer.parallel.device_mesh import data_mesh, has, make_expert_mesh, size_of
from hpckit.trainer.parallel.expert_parallel import balance, share_experts
from hpckit.trainer.parallel.gradient_norm import clip_gradients
from hpckit.trainer.parallel.pipeline_parallel import (
    LossOf,
    PipelineExecutor,
    PipelineShapes,
    assemble,
    parts_of_rank,
    shared_by_ends,
)
from hpckit.trainer.parallel.tensor_parallel import apply_tensor_parallel
from hpckit.trainer.precision.fp8_linear import use_fp8
from hpckit.trainer.precision.loss_scale import LossScale
from hpckit.trainer.timing.step_phases import Timed, untimed

log = logging.getLogger(__name__)


class ParallelModel:
    """A model that is spread over the ranks."""

    def __init__(
        self, cfg: RunSpec, mesh: DeviceMesh, device: torch.device, *, is_filled: bool = True
    ) -> None:
        """`is_filled`: parameters are initialized; else they have arbitrary values until
        `load_initial_weights` or a restored checkpoint fills them, since initialization takes
        minutes for a large model."""
        self._cfg, self._mesh, self._device = cfg, mesh, device
        self.attention = self._choose_attention()
        """Name of the attention kernel; None: the model has no attention."""
        self.loss_scale = LossScale(is_used=cfg.precision.compute == "fp16")
        self.parts = [self._build(part) for part in self._parts()]
        """The parts of the model on this rank: one, or in a pipeline as many as it has stages."""
        self._stages = [part for part in self.parts if isinstance(part, DecoderModel)]
        self.module = assemble(self._stages) if self._is_pipeline else self.parts[0]
        """All parts as one module with the names of the whole model, for optimizers and
        checkpoints."""
        if is_filled:
            self._draw()

    def gradients(self, share: int, loss_of: LossOf, timed: Timed = untimed) -> StepGradients:
        """Return the computation of the gradients of a step in which this rank takes `share`
        samples.

        Args:
            loss_of: computes the mean loss of a micro-batch from the targets and what the model
                returns (the losses of tokens, or logits of images).
            timed: is called when forward and backward passes begin and end.
        """
        scale = self.loss_scale
        passes = self._passes(
            share, lambda each, targets: loss_of(each, targets) * scale.value, timed
        )
        return StepGradients(passes, self.parts, scale)

    def begin(self, start: StartSpec | None) -> dict[str, Any] | None:
        """Initialize the parameters, or load those of another model, as of
        `hpckit.trainer.initial_weights`, which may have no adapters; returns what they were read
        from."""
        if start is None:
            self._draw()
            log.info("parameters are drawn")
            return None
        self._draw(is_adapter)
        return load_initial_weights(self.module, self._cfg, start)

    def clip(self, limit: float | None) -> Tensor:
        """Undo the loss scale of the gradients and clip them to a norm of `limit` (None: no limit);
        returns the norm before clipping. Collective."""
        return clip_gradients(
            self.module.parameters(),
            math.inf if limit is None else limit,
            stages=size_of(self._mesh, "pipeline"),
            shared=shared_by_ends(self._stages) if self._is_pipeline else [],
            device=self._device,
            scale=self.loss_scale.value,
        )

    def balance(self) -> dict[str, Tensor]:
        """Move the router biases, so that experts with fewer tokens than others in this step get
        more in the next. Returns metrics of the balance; none without experts. Collective."""
        experts = experts_of(self._cfg.model)
        if experts is None:
            return {}
        return {"fullest_expert": balance(self.module, experts.balance_rate)}

    def _passes(
        self, share: int, loss_of: LossOf, timed: Timed
    ) -> GradientAccumulation | PipelineExecutor:
        cfg = self._cfg
        parts = micro_batch_count(share, cfg.train.micro_batch)
        if not self._is_pipeline:
            return GradientAccumulation(self.parts[0], cfg.parallel, parts, loss_of, timed)
        shapes = self._shapes(share // parts)
        mesh = self._mesh["pipeline"]
        return PipelineExecutor(self._stages, cfg.parallel, mesh, shapes, parts, loss_of, timed)

    def _choose_attention(self) -> str | None:
        cfg = self._cfg
        if isinstance(cfg.model, ResnetSpec):
            return None
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

    @property
    def _is_pipeline(self) -> bool:
        return has(self._mesh, "pipeline")

    def _parts(self) -> list[LayerRange | None]:
        """Return the layer ranges of this rank's parts. None: all of the model."""
        if not self._is_pipeline:
            return [None]
        layers = decoder_of(self._cfg).layers
        return [*parts_of_rank(layers, self._cfg.parallel, self._mesh["pipeline"])]

    def _build(self, part: LayerRange | None) -> Model:
        cfg = self._cfg
        model = build(cfg.model, part, DTYPES[cfg.precision.master])
        if has(self._mesh, "tensor") and isinstance(model, DecoderModel):
            apply_tensor_parallel(model, self._mesh["tensor"])
        if cfg.lora and isinstance(model, DecoderModel):
            adapt(model, decoder_of(cfg), cfg.lora)
        self._apply_settings(model)
        offload = cfg.memory.offload
        mesh = data_mesh(self._mesh)
        if cfg.parallel.expert > 1:
            self._share_experts(model)
        if is_wrapped(cfg, dist.get_world_size()):
            shard(model, model.blocks.values(), mesh, cfg.parallel, cfg.precision, offload=offload)
        allocate(model, torch.device("cpu") if offload else self._device, cfg.train.seed)
        return model

    def _draw(self, which: Callable[[str], bool] | None = None) -> None:
        for part in self.parts:
            draw_parameters(part, self._cfg.train.seed, which)

    def _share_experts(self, model: Model) -> None:
        cfg = self._cfg
        mesh = make_expert_mesh(self._mesh.device_type, cfg.parallel)
        layers = share_experts(model, mesh["expert"])
        shard_layers(
            layers, data_mesh(mesh), cfg.parallel, cfg.precision, offload=cfg.memory.offload
        )

    def _apply_settings(self, model: Model) -> None:
        """Apply the settings that change how a model computes but none of its names."""
        memory, blocks = self._cfg.memory, model.blocks.values()
        if self._cfg.precision.compute == "fp8":
            use_fp8(blocks)
        recompute(blocks, memory.recompute)
        if memory.compile:
            compile_blocks(blocks)
        if isinstance(model, DecoderModel) and model.part.is_last:
            model.unembedding.chunks = memory.loss_chunks

    def _shapes(self, micro_batch: int) -> PipelineShapes:
        size, dtype = decoder_of(self._cfg), DTYPES[self._cfg.precision.compute]
        ranks = size_of(self._mesh, "tensor")
        with torch.device("meta"):
            return PipelineShapes(
                torch.empty(micro_batch, size.seq_len, dtype=torch.int64),
                torch.empty(
                    micro_batch, size.seq_len // ranks, size.width, dtype=dtype, requires_grad=True
                ),
                torch.empty(micro_batch, size.seq_len, requires_grad=True),
            )


class StepGradients:
    """Computes the gradients of a step for this rank's share of the samples."""

    def __init__(
        self,
        passes: GradientAccumulation | PipelineExecutor,
        parts: Iterable[Model],
        scale: LossScale,
    ) -> None:
        self._passes, self._parts, self._scale = passes, parts, scale

    def __call__(self, inputs: Tensor, targets: Tensor, documents: Tensor | None = None) -> Tensor:
        """Add the gradients to those of the parameters.

        Args:
            inputs, targets, documents: (share, time), as of `DecoderModel`; or images (share, 3,
                side, side) and their labels (share,).

        Returns:
            The mean loss of the share.
        """
        return self._passes(inputs, targets, documents) / self._scale.value

    @torch.no_grad()
    def outputs(self, inputs: Tensor, targets: Tensor, documents: Tensor | None = None) -> Tensor:
        """Return the outputs of the model alone, in the same micro-batches: the losses of tokens
        (share, time), on every rank of a pipeline; or logits of images (share, classes)."""
        found = self._passes.outputs(inputs, targets, documents)
        reshard_models(self._parts)
        return found


class GradientAccumulation:
    """Computes the gradients of a step one micro-batch after the other."""

    def __init__(
        self,
        model: Model,
        parallel: ParallelSpec,
        micro_batches: int,
        loss_of: LossOf,
        timed: Timed,
    ) -> None:
        self._model, self._parallel, self._timed = model, parallel, timed
        self._micro_batches, self._loss_of = micro_batches, loss_of

    def __call__(self, inputs: Tensor, targets: Tensor, documents: Tensor | None) -> Tensor:
        """Add the gradients, as of `StepGradients`."""
        parts, losses = self._micro_batches, []
        micro_batches = self._micro(inputs, targets, documents)
        for number, given in enumerate(micro_batches, start=1):
            before_micro_batch(self._model, self._parallel, is_last=number == parts)
            with self._timed("forward"):
                loss = self._loss_of(self._model(*given), given[1])
            with self._timed("backward"):
                (loss / parts).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def outputs(self, inputs: Tensor, targets: Tensor, documents: Tensor | None) -> Tensor:
        """Return the outputs, as of `StepGradients`."""
        return torch.cat([self._model(*given) for given in self._micro(inputs, targets, documents)])

    def _micro(
        self, inputs: Tensor, targets: Tensor, documents: Tensor | None
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the arguments of each micro-batch: inputs, targets, and documents if there are
        any."""
        given = (inputs, targets) if documents is None else (inputs, targets, documents)
        return zip(*(each.chunk(self._micro_batches) for each in given), strict=True)
