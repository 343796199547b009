"""The size of a model of any kind, and the work for a sample of it."""

from __future__ import annotations

from dataclasses import dataclass

from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import ImageSpec, RunSpec
from hpckit.planner.model import image_layers
from hpckit.planner.model.flops import (
    by_layers_per_token,
    computed_per_token,
    parameter_count,
    per_token,
)
from hpckit.planner.model.parameter_shapes import adapter_count, trained_count


@dataclass(frozen=True)
class ModelWork:
    """The work of a model; operations are floating-point operations, forward and backward."""

    unit: str
    """The unit of a sample: "token"; for images, "sample"."""
    units: int
    """Number of units of a sample."""
    flops: int
    """Operations of a unit that the model needs."""
    computed: int
    """Operations of a unit that a GPU executes, with recompute."""
    in_fp8: int
    """Those of them that precision=fp8 computes in fp8."""
    parameters: int
    trained: int
    """Trained parameters: all, or those of adapters."""


def work_of(spec: RunSpec) -> ModelWork:
    """Return the work of the model of a run that trains one of `conf/model/`."""
    if isinstance(spec.model, ImageSpec):
        return _of_images(spec, spec.model)
    model, recompute, lora = decoder_of(spec), spec.memory.activation_checkpointing, spec.lora
    return ModelWork(
        unit="token",
        units=model.seq_len,
        flops=per_token(model, lora),
        computed=computed_per_token(model, recompute, lora, spec.memory.loss_chunks),
        in_fp8=by_layers_per_token(model, recompute, lora),
        parameters=parameter_count(model) + adapter_count(model, lora),
        trained=trained_count(model, lora),
    )


def _of_images(spec: RunSpec, model: ImageSpec) -> ModelWork:
    parameters = image_layers.parameter_count(model)
    return ModelWork(
        unit="sample",
        units=1,
        flops=image_layers.per_sample(model),
        computed=image_layers.computed_per_sample(model, spec.memory.activation_checkpointing),
        in_fp8=0,
        parameters=parameters,
        trained=parameters,
    )
