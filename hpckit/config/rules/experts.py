"""Rules for models with experts, as pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.config.parallel_degrees import ParallelDegrees
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import ExpertsSpec, GptSpec, ModelSpec, RunSpec

UNIT = 8
"""The feature sizes of experts are multiples of this, as torch's grouped matrix products take rows
that start at multiples of 16 bytes."""


def experts_of(model: ModelSpec) -> ExpertsSpec | None:
    """Returns the experts of a model, or None."""
    return model.experts if isinstance(model, GptSpec) else None


def expert_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations that hold for every world."""
    experts = experts_of(spec.model)
    if experts is None:
        if spec.parallel.expert > 1:
            yield (
                f"parallel.expert: {spec.parallel.expert} ranks would share experts, but this "
                "model has no experts; use 1, or a model with experts, such as gpt2_moe"
            )
        return
    if experts.top_k > experts.count:
        yield (
            f"model.experts.top_k: a token cannot go through {experts.top_k} of "
            f"model.experts.count={experts.count}"
        )
    for name, size in (("width", decoder_of(spec).width), ("experts.hidden", experts.hidden)):
        if size is not None and size % UNIT:
            yield f"model.{name}: experts need it to be a multiple of {UNIT}, got {size}"
    if experts.count % spec.parallel.expert:
        yield (
            f"parallel.expert: {spec.parallel.expert} ranks do not divide "
            f"model.experts.count={experts.count}"
        )
    yield from _unsupported_with_experts(spec)


def expert_violations_of_world(spec: RunSpec, found: ParallelDegrees) -> Iterator[str]:
    """Yields the violations for a world of these degrees."""
    if experts_of(spec.model) is None:
        return
    for name, ranks in (("tensor", found.tensor), ("pipeline", found.pipeline)):
        if ranks > 1:
            yield (
                f"parallel.{name}: models with experts cannot be divided over {ranks} ranks this "
                "way; use parallel.expert, with a parallel group such as fsdp"
            )


def _unsupported_with_experts(spec: RunSpec) -> Iterator[str]:
    """Yields violations for options that models with experts do not support."""
    if spec.precision.compute == "fp8":
        yield "precision.compute: experts cannot be computed in fp8; use bf16"
    if spec.memory.compile:
        yield (
            "memory.compile: blocks with experts cannot be compiled, because the number of tokens "
            "of each expert is known only at run time; use false"
        )
    if spec.memory.activation_checkpointing == "selective" and spec.parallel.expert > 1:
        yield (
            "memory.activation_checkpointing: selective is not supported with experts that ranks "
            "share (parallel.expert), because FSDP gathers them inside a block; use full"
        )
    if spec.memory.cpu_offload:
        yield (
            "memory.cpu_offload: experts that ranks share (parallel.expert) must stay on the GPU; "
            "use false"
        )
