"""The parallel model of a run on this rank, which also computes the gradients of a step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache
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
from hpckit.config.spec import InitFromSpec, ParallelSpec, ResnetSpec, RunSpec
from hpckit.trainer.device.attention_kernel import (
    attention_in_use,
    check_varlen_attention,
    choose_attention,
)
from hpckit.trainer.device.block_compilation import compile_blocks
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.initial_weights import load_initial_weights
from hpckit.trainer.memory.activation_recompute import recompute
from hpckit.trainer.models.base_model import Model
from hpckit.trainer.models.decoder import DecoderModel, LayerRange
from hpckit.trainer.models.lora import adapt, is_adapter
from hpckit.trainer.models.model_builder import allocate, build, initialize_parameters
from hpckit.trainer.parallel.data_parallel import (
    DTYPES,
    before_micro_batch,
    reshard_models,
    shard,
    shard_layers,
)
from hpckit.trainer.parallel.device_mesh import data_mesh, has, make_expert_mesh, size_of
from hpckit.trainer.parallel.expert_parallel import balance_routers, shard_experts
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
    """The model as this rank has it, with sharding, pipeline stages, precision and activation
    checkpointing applied. Its construction and most methods are collective."""

    def __init__(
        self, cfg: RunSpec, mesh: DeviceMesh, device: torch.device, *, is_initialized: bool = True
    ) -> None:
        """`is_initialized`: parameters are initialized here. Otherwise they have arbitrary
        values until `initialize` or a restored checkpoint sets them, since initialization takes
        minutes for a large model."""
        self._cfg, self._mesh, self._device = cfg, mesh, device
        self.attention = self._choose_attention()
        """Name of the attention kernel; None if the model has no attention."""
        self.loss_scale = LossScale(is_used=cfg.precision.compute == "fp16")
        self.parts = [self._build(part) for part in self._layer_ranges()]
        """The parts of the model on this rank: one, or in a pipeline as many as it has stages."""
        self._stages = [part for part in self.parts if isinstance(part, DecoderModel)]
        self.module = assemble(self._stages) if self._is_pipeline else self.parts[0]
        """All parts as one module, with the names of the whole model, for optimizers and
        checkpoints."""
        if is_initialized:
            self._initialize_parameters()

    def step_gradients(
        self, local_batch: int, loss_of: LossOf, timed: Timed = untimed
    ) -> StepGradients:
        """Return the function that computes the gradients of a step in which this rank takes
        `local_batch` samples, or as many as its call says.

        Args:
            loss_of: is called with what the model returns for a micro-batch (the losses of tokens,
                or logits of images) and the targets.
            timed: counts the time of forward and backward passes as phases of the step.
        """
        scale = self.loss_scale

        def scaled(output: Tensor, targets: Tensor) -> Tensor:
            return loss_of(output, targets) * scale.value

        def passes_of(samples: int) -> GradientAccumulation | PipelineExecutor:
            return self._passes(samples, scaled, timed)

        return StepGradients(passes_of, local_batch, self.parts, scale)

    def initialize(self, start: InitFromSpec | None) -> dict[str, Any] | None:
        """Initialize the parameters, or load those of another model, as
        `hpckit.trainer.initial_weights` does; initialize adapters that it lacks. Collective.

        Returns:
            A description of the other model; None if there is none.
        """
        if start is None:
            self._initialize_parameters()
            log.info("the parameters are initialized")
            return None
        self._initialize_parameters(is_adapter)
        return load_initial_weights(self.module, self._cfg, start)

    def clip_gradients(self, limit: float | None) -> Tensor:
        """Undo the loss scale of the gradients, clip them to a norm of `limit` (None: no limit),
        and return the norm before clipping. Collective."""
        return clip_gradients(
            self.module.parameters(),
            math.inf if limit is None else limit,
            stages=size_of(self._mesh, "pipeline"),
            shared=shared_by_ends(self._stages) if self._is_pipeline else [],
            device=self._device,
            scale=self.loss_scale.value,
        )

    def balance_experts(self, *, is_update: bool = True) -> dict[str, Tensor]:
        """Update the router biases, so that experts with fewer tokens than others in this step get
        more in the next, and return a metric of the balance. Without experts, there is nothing to
        do and no metric. Collective.

        Args:
            is_update: whether the biases change; if not, the tokens of this step do not count.
        """
        experts = experts_of(self._cfg.model)
        if experts is None:
            return {}
        rate = experts.balance_rate if is_update else 0.0
        return {"fullest_expert": balance_routers(self.module, rate)}

    def _passes(
        self, local_batch: int, loss_of: LossOf, timed: Timed
    ) -> GradientAccumulation | PipelineExecutor:
        cfg = self._cfg
        micro_batches = micro_batch_count(local_batch, cfg.train.micro_batch)
        if not self._is_pipeline:
            return GradientAccumulation(self.parts[0], cfg.parallel, micro_batches, loss_of, timed)
        shapes = self._shapes(local_batch // micro_batches)
        mesh = self._mesh["pipeline"]
        return PipelineExecutor(
            self._stages, cfg.parallel, mesh, shapes, micro_batches, loss_of, timed
        )

    def _choose_attention(self) -> str | None:
        cfg = self._cfg
        if isinstance(cfg.model, ResnetSpec):
            return None
        choose_attention(cfg.memory.attention)
        dtype = DTYPES[cfg.precision.compute]
        if cfg.memory.attention == "varlen":
            check_varlen_attention(self._device, dtype)
            log.info("attention: varlen")
            return "varlen"
        ranks = size_of(self._mesh, "tensor")
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

    def _layer_ranges(self) -> list[LayerRange | None]:
        """Return the ranges of layers of this rank's parts; None stands for the whole model."""
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
        offload = cfg.memory.cpu_offload
        mesh = data_mesh(self._mesh)
        if cfg.parallel.expert > 1:
            self._shard_experts(model)
        if is_wrapped(cfg, dist.get_world_size()):
            shard(model, model.blocks.values(), mesh, cfg.parallel, cfg.precision, offload=offload)
        allocate(model, torch.device("cpu") if offload else self._device, cfg.train.seed)
        return model

    def _initialize_parameters(self, which: Callable[[str], bool] | None = None) -> None:
        for part in self.parts:
            initialize_parameters(part, self._cfg.train.seed, which)

    def _shard_experts(self, model: Model) -> None:
        cfg = self._cfg
        mesh = make_expert_mesh(self._mesh.device_type, cfg.parallel)
        layers = shard_experts(model, mesh["expert"])
        shard_layers(
            layers, data_mesh(mesh), cfg.parallel, cfg.precision, offload=cfg.memory.cpu_offload
        )

    def _apply_settings(self, model: Model) -> None:
        """Apply the settings that change how a model computes, but not the names of its
        parameters."""
        memory, blocks = self._cfg.memory, model.blocks.values()
        if self._cfg.precision.compute == "fp8":
            use_fp8(blocks)
        recompute(blocks, memory.activation_checkpointing)
        if memory.compile:
            compile_blocks(blocks)
        if isinstance(model, DecoderModel) and memory.attention == "varlen":
            model.window = decoder_of(self._cfg).seq_len
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
    """Computes the gradients of a step for this rank's samples."""

    def __init__(
        self,
        passes_of: Callable[[int], GradientAccumulation | PipelineExecutor],
        local_batch: int,
        parts: Iterable[Model],
        scale: LossScale,
    ) -> None:
        """`passes_of`: makes the passes of a step in which this rank takes so many samples."""
        self._passes_of, self._parts, self._scale = cache(passes_of), parts, scale
        self._local_batch = local_batch
        self._passes()  # raises if it is impossible

    def __call__(
        self,
        inputs: Tensor,
        targets: Tensor,
        documents: Tensor | None = None,
        *,
        samples: int | None = None,
    ) -> Tensor:
        """Add the gradients to those of the parameters.

        Args:
            inputs, targets, documents: (local batch, time), as of `DecoderModel`; or images (local
                batch, 3, side, side) and their labels (local batch,). Each sample may be divided
                into the same number of rows.
            samples: that this rank takes in this step; None: `local_batch`.

        Returns:
            The mean loss of the samples.
        """
        return self._passes(samples)(inputs, targets, documents) / self._scale.value

    def first_micro_batch(
        self,
        inputs: Tensor,
        targets: Tensor,
        documents: Tensor | None = None,
        *,
        samples: int | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the first of the micro-batches into which the arguments of a call are divided, as
        the arguments of `compute_alone`."""
        passes = self._passes(samples)
        if isinstance(passes, PipelineExecutor):
            raise TrainingError("no single micro-batch can be computed in a pipeline")
        return passes.first(inputs, targets, documents)

    def compute_alone(self, *micro_batch: Tensor) -> None:
        """Add the gradients of one micro-batch to those of the parameters, as a part of a step of
        `local_batch` samples."""
        passes = self._passes()
        assert isinstance(passes, GradientAccumulation)
        passes.compute_alone(*micro_batch)

    @torch.no_grad()
    def outputs(self, inputs: Tensor, targets: Tensor, documents: Tensor | None = None) -> Tensor:
        """Return the outputs of the model, computed in the same micro-batches: the losses of tokens
        (local batch, time), on every rank of a pipeline; or logits of images (local batch,
        classes)."""
        found = self._passes().outputs(inputs, targets, documents)
        reshard_models(self._parts)
        return found

    def _passes(self, samples: int | None = None) -> GradientAccumulation | PipelineExecutor:
        return self._passes_of(self._local_batch if samples is None else samples)


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
        """Add the gradients and return the mean loss, as `StepGradients` does."""
        count, losses = self._micro_batches, []
        micro_batches = self._split(inputs, targets, documents)
        for number, given in enumerate(micro_batches, start=1):
            before_micro_batch(self._model, self._parallel, is_last=number == count)
            with self._timed("forward"):
                loss = self._loss_of(self._model(*given), given[1])
            with self._timed("backward"):
                (loss / count).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def first(
        self, inputs: Tensor, targets: Tensor, documents: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the arguments of the first micro-batch, as `StepGradients` does."""
        return next(self._split(inputs, targets, documents))

    def compute_alone(self, *given: Tensor) -> None:
        """Add the gradients of one micro-batch, as `StepGradients` does."""
        before_micro_batch(self._model, self._parallel, is_last=True)
        loss = self._loss_of(self._model(*given), given[1])
        (loss / self._micro_batches).backward()  # type: ignore[no-untyped-call]

    def outputs(self, inputs: Tensor, targets: Tensor, documents: Tensor | None) -> Tensor:
        """Return the outputs of the model, as `StepGradients` does."""
        return torch.cat([self._model(*given) for given in self._split(inputs, targets, documents)])

    def _split(
        self, inputs: Tensor, targets: Tensor, documents: Tensor | None
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the arguments of each micro-batch: inputs, targets, and documents if there are
        any."""
        given = (inputs, targets) if documents is None else (inputs, targets, documents)
        return zip(*(each.chunk(self._micro_batches) for each in given), strict=True)
