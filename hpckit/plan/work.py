"""What a model is to a plan, of whichever kind: how large it is, and what a sample of it costs."""

from __future__ import annotations

from dataclasses import dataclass

from hpckit.plan import images
from hpckit.plan.flops import by_layers_per_token, computed_per_token, parameter_count, per_token
from hpckit.plan.shapes import adapter_count, trained_count
from hpckit.run.modelcheck import decoder_of
from hpckit.run.spec import ImageSpec, RunSpec


@dataclass(frozen=True)
class Work:
    """Operations are of floating-point numbers, forward and backward."""

    unit: str
    """What a sample is made of: "token"; of images, "sample"."""
    units: int
    """Of a sample."""
    flops: int
    """Operations of a unit, as the model needs them."""
    computed: int
    """As a GPU does them, with all that is computed again."""
    in_fp8: int
    """Those of them that precision=fp8 computes in fp8."""
    parameters: int
    trained: int
    """Of these: all, or those of adapters."""


def work_of(spec: RunSpec) -> Work:
    """Of the model of a run that trains one of `conf/model/`."""
    if isinstance(spec.model, ImageSpec):
        return _of_images(spec, spec.model)
    model, recompute, lora = decoder_of(spec), spec.memory.recompute, spec.lora
    return Work(
        unit="token",
        units=model.seq_len,
        flops=per_token(model, lora),
        computed=computed_per_token(model, recompute, lora, spec.memory.loss_chunks),
        in_fp8=by_layers_per_token(model, recompute, lora),
        parameters=parameter_count(model) + adapter_count(model, lora),
        trained=trained_count(model, lora),
    )


def _of_images(spec: RunSpec, model: ImageSpec) -> Work:
    parameters = images.parameter_count(model)
    return Work(
        unit="sample",
        units=1,
        flops=images.per_sample(model),
        computed=images.computed_per_sample(model, spec.memory.recompute),
        in_fp8=0,
        parameters=parameters,
        trained=parameters,
    )
