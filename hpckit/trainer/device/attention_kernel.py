"""The selection of torch's attention kernel."""

from __future__ import annotations

import importlib
import inspect

import torch
from torch.nn.attention import SDPBackend

from hpckit.config.spec import DecoderSpec, LlamaSpec, VitSpec
from hpckit.torch_internals import fused_attention_choice
from hpckit.trainer.errors import TrainingError

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}

VARLEN_OPTIONS = {"window_size", "enable_gqa"}
"""The arguments of torch.nn.attention.varlen.varlen_attn that are used; torch 2.10 has neither, and
2.11 has not the second."""


def choose_attention(name: str) -> None:
    """Restrict this process to the attention kernel of that name; "auto" and "varlen", which is
    not one of scaled_dot_product_attention, allow all of them.

    This is not a context manager, because activation checkpointing must use the same kernel in the
    backward pass.
    """
    allowed = {backend for backend in BACKENDS if name in (backend, "auto", "varlen")}
    torch.backends.cuda.enable_flash_sdp("flash" in allowed)
    torch.backends.cuda.enable_mem_efficient_sdp("efficient" in allowed)
    torch.backends.cuda.enable_cudnn_sdp("cudnn" in allowed)
    torch.backends.cuda.enable_math_sdp("math" in allowed)


def check_varlen_attention(device: torch.device, dtype: torch.dtype) -> None:
    """Raise TrainingError if attention within documents by their offsets cannot run here in this
    dtype. On CPUs it needs nothing of torch."""
    if device.type != "cuda":
        return
    if dtype is torch.float32:  # the spec does not tell with cluster.device=auto
        raise TrainingError(
            "memory.attention: varlen computes in bf16 or fp16 on GPUs; use precision=bf16, or "
            "another attention"
        )
    if VARLEN_OPTIONS - _options_of_varlen():
        raise TrainingError(
            f"memory.attention: varlen needs torch 2.12 or newer, and this is "
            f"{torch.__version__}; choose another, or auto"
        )


def _options_of_varlen() -> set[str]:
    """Return the names of the arguments of torch's attention of varying lengths; none if there is
    no such function."""
    try:
        kernel = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except (ImportError, AttributeError):
        return set()
    return {*inspect.signature(kernel).parameters}


def attention_in_use(
    model: DecoderSpec | VitSpec,
    batch: int,
    ranks: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    masked: bool = False,
) -> str:
    """Return the name of the kernel that torch chooses for this model, by the function that torch
    itself calls.

    Args:
        batch: number of samples of a micro-batch.
        ranks: number of ranks over which tensor parallelism shards the heads.
        masked: whether attention has a mask tensor, as for documents that do not attend to each
            other.

    Raises:
        TrainingError: none of the allowed kernels can run.
    """
    shared = model.kv_heads if isinstance(model, LlamaSpec) else model.heads
    width, is_causal = model.width // model.heads, isinstance(model, DecoderSpec)
    positions = (
        model.seq_len if isinstance(model, DecoderSpec) else (model.image_size // model.patch) ** 2
    )
    query, key = (
        torch.empty(
            batch, heads // ranks, positions, width,
            dtype=dtype, device=device, requires_grad=True,
        )
        for heads in (model.heads, shared)
    )  # fmt: skip
    grouped = shared != model.heads
    square = (batch, 1, positions, positions)
    mask = torch.ones(square, dtype=dtype, device=device) if masked else None
    try:
        found = fused_attention_choice(
            query, key, key, attn_mask=mask, is_causal=is_causal and not masked, enable_gqa=grouped
        )
    except RuntimeError as error:
        raise _no_kernel_error(query, device, str(error)) from None
    if found == SDPBackend.ERROR.value:
        raise _no_kernel_error(query, device, "torch's warnings above say why")
    names = {backend.value: name for name, backend in BACKENDS.items()}
    return names.get(found, SDPBackend(found).name.lower())


def _no_kernel_error(query: torch.Tensor, device: torch.device, why: str) -> TrainingError:
    return TrainingError(
        f"memory.attention: no kernel of this kind runs on {device} for heads of "
        f"{query.shape[-1]} features in {query.dtype}; choose another, or auto ({why})"
    )
