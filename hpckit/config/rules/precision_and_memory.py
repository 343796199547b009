"""Rules for number formats and options that save memory, as pure
functions."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.config.parallel_degrees import ParallelDegrees
from hpckit.config.spec import DecoderSpec, ImageSpec, LlamaSpec, ResnetSpec, RunSpec

FP8_UNIT = 16
"""The sizes of matrix products in fp8 are multiples of this."""


def masks_attention(spec: RunSpec) -> bool:
    """Returns whether windows hold several documents whose tokens do not attend to each other."""
    return spec.data.text == "tokens" and spec.data.document_mask


def precision_memory_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations that hold for every world."""
    memory, precision, device = spec.memory, spec.precision, spec.cluster.device
    if precision.master == "bf16" and precision.compute not in ("bf16", "fp8"):
        yield f"precision.master: bf16 requires compute=bf16 or fp8, not {precision.compute}"
    if precision.compute == "fp8" and isinstance(spec.model, DecoderSpec):
        yield from _fp8(spec, spec.model)
    if memory.cpu_offload and device == "cpu":
        yield (
            "memory.cpu_offload: with cluster.device=cpu, all state is in the host's memory "
            "already; use false"
        )
    if memory.attention in ("efficient", "cudnn") and device == "cpu":
        yield (
            f"memory.attention: {memory.attention} is not available with cluster.device=cpu; use "
            "flash or math"
        )
    if masks_attention(spec) and memory.attention == "flash" and device == "cuda":
        yield (
            "memory.attention: flash does not support masks on GPUs, which data.document_mask=true "
            "requires; use auto, efficient, cudnn or math, or data.document_mask=false"
        )
    yield from _varlen(spec)
    if isinstance(spec.model, ImageSpec):
        yield from _image_model(spec, spec.model)
    elif memory.loss_chunks > spec.model.seq_len:
        yield (
            f"memory.loss_chunks: {memory.loss_chunks} is more than "
            f"model.seq_len={spec.model.seq_len} positions"
        )


def _varlen(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of attention within documents by their offsets."""
    memory, device = spec.memory, spec.cluster.device
    is_varlen = memory.attention == "varlen"
    if spec.data.balance is not None and not (is_varlen and masks_attention(spec)):
        yield (
            f"data.balance: {spec.data.balance} makes no difference where all windows cost the "
            "same; use memory.attention=varlen with data.text=tokens and data.document_mask=true, "
            "or leave it out"
        )
    if not is_varlen:
        return
    if not masks_attention(spec) or isinstance(spec.model, ImageSpec):
        yield (
            "memory.attention: varlen computes attention within the documents of a window, which "
            "data.text=tokens with data.document_mask=true has; use another, or auto"
        )
    if spec.train.sequence_ramp is not None:
        yield (
            "memory.attention: varlen takes the offsets of documents in windows of one length, and "
            "train.sequence_ramp makes shorter ones; use another, or leave the ramp out"
        )
    if device == "cuda" and spec.precision.compute == "fp32":
        yield (
            "memory.attention: varlen computes in bf16 or fp16 on GPUs; use precision=bf16, or "
            "another attention"
        )
    if device == "cpu" and memory.compile:
        yield (
            "memory.attention: varlen cannot be compiled on CPUs, where it takes one document "
            "after the other; use memory.compile=false, or another attention"
        )


def precision_memory_violations_of_world(spec: RunSpec, found: ParallelDegrees) -> Iterator[str]:
    """Yields the violations for a world of these degrees."""
    if spec.memory.cpu_offload and found.pipeline > 1:
        yield (
            "memory.cpu_offload: the stages of a pipeline keep their parameters on the GPU for a "
            "whole step; use a parallel group without a pipeline, such as fsdp"
        )
    if spec.memory.cpu_offload and found.replicate > 1 and found.shard == 1:
        yield (
            f"memory.cpu_offload: each of the {found.replicate} replicas would keep the whole "
            "state of the optimizer in the host's memory; use a parallel group that shards, such "
            "as fsdp"
        )
    if spec.memory.cpu_offload and spec.optim.kind == "muon" and found.data * found.tensor > 1:
        yield (
            "memory.cpu_offload: muon exchanges matrices between GPUs, so they cannot be in the "
            "host's memory; use optim=adamw, or memory.cpu_offload=false"
        )
    if spec.precision.compute == "fp8" and found.tensor > 1:
        yield (
            f"precision.compute: layers divided over {found.tensor} ranks (parallel.tensor) cannot "
            "be computed in fp8; use bf16, or a parallel group without tensor"
        )


def _image_model(spec: RunSpec, model: ImageSpec) -> Iterator[str]:
    """Yields violations for options that image models do not support."""
    memory, kind = spec.memory, model.kind
    if spec.precision.compute == "fp8":
        yield f"precision.compute: a {kind} cannot be computed in fp8; use bf16"
    if memory.cpu_offload:
        yield f"memory.cpu_offload: a {kind} cannot be offloaded; use false"
    if memory.loss_chunks > 1:
        yield f"memory.loss_chunks: a {kind} has one label per sample; use 1"
    if isinstance(model, ResnetSpec) and memory.activation_checkpointing == "selective":
        yield (
            "memory.activation_checkpointing: selective keeps the results of attention and matrix "
            "products, which a resnet does not have; use full or none"
        )
    if isinstance(model, ResnetSpec) and memory.attention != "auto":
        yield (
            f"memory.attention: a resnet has no attention to compute by {memory.attention}; use "
            "auto"
        )


def _fp8(spec: RunSpec, model: DecoderSpec) -> Iterator[str]:
    if spec.cluster.device == "cpu":
        yield "precision.compute: fp8 requires a GPU (Ada, Hopper or later); use bf16"
    sizes = {"width": model.width, "seq_len": model.seq_len}
    if isinstance(model, LlamaSpec):
        sizes |= {"hidden": model.hidden}
        sizes |= {"kv_heads": model.width // model.heads * model.kv_heads}
    for name, size in sizes.items():
        if size % FP8_UNIT:
            what = "the features of all heads" if name == "kv_heads" else "it"
            yield f"model.{name}: fp8 needs {what} to be a multiple of {FP8_UNIT}, got {size}"
