"""Floating-point operations of training that the model needs: the numerator of model FLOPs
utilisation."""

from __future__ import annotations

from hpckit.config.spec import DecoderSpec, GptSpec, LoraSpec
from hpckit.planner.model.activations import Recompute
from hpckit.planner.model.parameter_shapes import (
    adapter_count,
    block,
    elements,
    ends,
    expert_hidden,
    key_width,
    parameters,
)

_PASSES = 3  # the backward pass takes twice what the forward pass does


def per_token(model: DecoderSpec, lora: LoraSpec | None = None) -> int:
    """Return the operations, forward and backward, of a token in a full context: 6 N + 12 L s d
    (Chowdhery et al. 2022, "PaLM", appendix B), where N is the number of parameters of matrix
    products.

    As there, attention counts for the whole context, though kernels skip later tokens, and
    recompute does not count. Frozen parameters beside adapters need no gradient of their own, which
    is a third of the operations.
    """
    each = 6 if lora is None else 4
    products = each * product_parameters(model) + 6 * adapter_count(model, lora)
    return products + attention_per_token(model)


def attention_per_token(model: DecoderSpec) -> int:
    """Return the operations of the products of queries with keys, and of attention weights with
    values."""
    return _PASSES * 4 * model.layers * model.seq_len * model.width


def product_parameters(model: DecoderSpec) -> int:
    """Return the number of parameters that a token is multiplied by: all but tables that are only
    looked up (positions, and tokens if the output layer is separate) and the experts that it does
    not go through."""
    table = model.vocab * model.width
    if isinstance(model, GptSpec):
        return parameter_count(model) - model.seq_len * model.width - _idle(model)
    return parameter_count(model) - (0 if model.tied else table)


def _idle(model: GptSpec) -> int:
    if model.experts is None:
        return 0
    each = sum(one.elements() for one in block(model) if one.is_stack) // model.experts.count
    return model.layers * (model.experts.count - model.experts.top_k) * each


def parameter_count(model: DecoderSpec) -> int:
    """Return the number of all parameters."""
    return elements(parameters(model))


def computed_per_token(
    model: DecoderSpec, recompute: Recompute, lora: LoraSpec | None = None, loss_chunks: int = 1
) -> int:
    """Return the operations that a GPU executes: with `recompute`, some or all of a block runs
    forward twice, and so does the output layer if its loss is computed in several `loss_chunks`."""
    again = {"none": 0, "selective": _unkept(model), "full": _forward_of_blocks(model)}
    logits = 2 * model.vocab * model.width if loss_chunks > 1 else 0
    return per_token(model, lora) + again[recompute] + logits


def by_layers_per_token(
    model: DecoderSpec, recompute: Recompute, lora: LoraSpec | None = None
) -> int:
    """Return the part of `computed_per_token` in products of the linear layers of blocks, which
    precision=fp8 computes in fp8; attention, adapters and the output layer are not included."""
    each = 6 if lora is None else 4
    products = model.layers * elements(
        one for one in block(model) if one.divided is not None and len(one.shape) == 2
    )
    unkept = 2 * model.layers * _unkept_layers(model)
    again = {"none": 0, "selective": unkept, "full": 2 * products}
    return each * products + again[recompute]


def _forward_of_blocks(model: DecoderSpec) -> int:
    return (per_token(model) - 6 * _output_parameters(model)) // _PASSES


def _unkept(model: DecoderSpec) -> int:
    """Return the operations of the matrix products that
    `hpckit.trainer.memory.activation_recompute` does not keep."""
    products = _unkept_layers(model)
    if isinstance(model, GptSpec) and model.experts:
        products += 2 * model.experts.top_k * expert_hidden(model) * model.width  # up and down
    return 2 * model.layers * products


def _unkept_layers(model: DecoderSpec) -> int:
    """Return the number of parameters of these linear layers in one block."""
    width = model.width
    if isinstance(model, GptSpec):
        down = 0 if model.experts else expert_hidden(model) * width
        return width * width + down  # out
    return key_width(model) * width + width * width + model.hidden * width  # key, out, up


def _output_parameters(model: DecoderSpec) -> int:
    return elements(ends(model, is_first=False, is_last=True))
