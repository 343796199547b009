"""Memory of activations: the bytes that a micro-batch leaves for its backward pass.

Counted tensor by tensor, as autograd keeps them with a fused attention that keeps its output and a
number per head and position (Dao et al. 2022), or by torch's plain one where
`memory.attention=math` asks for it; and with fused norms. Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models" (2022) count the same for GPT, with dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpckit.config.model_layers import adapted
from hpckit.config.rules.experts import experts_of
from hpckit.config.spec import DecoderSpec, GptSpec, LlamaSpec, LoraSpec
from hpckit.planner.model.parameter_shapes import expert_hidden, key_width

Recompute = Literal["none", "selective", "full"]
"""What the backward pass recomputes: as of `memory.activation_checkpointing`."""

_FP32 = 4
_TOKEN = 8  # bytes of a token id


@dataclass(frozen=True)
class ActivationBatch:
    """The input of a model for one pass."""

    samples: int
    size: int
    """Bytes of a number in the format of activations."""
    tensor: int
    """Number of ranks that compute each layer together."""
    is_plain: bool = False
    """Whether attention is computed by torch's plain products (`memory.attention=math`), which use
    fp32 and keep the scores of each pair of positions."""


def of_block(model: DecoderSpec, batch: ActivationBatch) -> int:
    """Return the bytes that one block keeps, from the input of the first norm to that of the last
    matrix.

    Between layers a rank has its part of the positions; the input of attention and of the
    perceptron is gathered and kept whole.
    """
    width, keys = model.width, key_width(model)
    whole = width if experts_of(model) else 2 * width
    # residuals, attention, perceptron
    divided = 2 * width + (width + 2 * keys + width) + _of_perceptron(model)
    features = divided / batch.tensor + whole
    norms = 2 * (1 if isinstance(model, LlamaSpec) else 2) / batch.tensor
    sums = model.heads / batch.tensor
    each = features * batch.size + (norms + sums) * _FP32
    tokens = batch.samples * model.seq_len
    kept = round(tokens * each) + _turns(model) + _of_experts(model, tokens, batch.size)
    return kept + (_of_plain_attention(model, batch) if batch.is_plain else 0)


def _of_perceptron(model: DecoderSpec) -> int:
    """Return the features per position that the perceptron keeps; for experts see `_of_experts`."""
    if isinstance(model, LlamaSpec):
        return 4 * model.hidden
    return 0 if model.experts else 2 * 4 * model.width


def _of_plain_attention(model: DecoderSpec, batch: ActivationBatch) -> int:
    """Return what plain attention keeps beyond a fused one: weights of each pair of positions,
    instead of a number for each position; and queries, keys and values of all heads in fp32,
    instead of those of groups."""
    width, pairs = model.width, model.heads * model.seq_len
    fused = (width + 2 * key_width(model)) * batch.size + model.heads * _FP32
    each = (pairs + 3 * width) * _FP32 - fused
    return batch.samples * model.seq_len * each // batch.tensor


def of_input(model: DecoderSpec, batch: ActivationBatch) -> int:
    """Return the bytes of the input or the output of a block."""
    return batch.samples * model.seq_len * model.width * batch.size // batch.tensor


def of_blocks(model: DecoderSpec, batch: ActivationBatch, blocks: int, recompute: Recompute) -> int:
    """Return the bytes that so many blocks keep."""
    each = {"none": of_block, "selective": of_selected, "full": of_input}[recompute]
    return blocks * each(model, batch)


def of_selected(model: DecoderSpec, batch: ActivationBatch) -> int:
    """Return the bytes that one block keeps with selective recompute: its input, fused attention
    and every second matrix product, counted as `hpckit.trainer.memory.activation_recompute` does,
    in the order of the forward pass."""
    width = model.width
    if isinstance(model, LlamaSpec):
        divided, whole = width + key_width(model) + model.hidden, width  # query, value, gate; down
    else:
        # outputs of attention together; up, which experts do not have
        divided, whole = 3 * width + (0 if model.experts else 4 * width), 0
    features, sums = divided / batch.tensor + whole, 0.0
    if not batch.is_plain:
        features += width / batch.tensor
        sums += model.heads / batch.tensor
    if experts := experts_of(model):
        sums += experts.count  # scores
    each = features * batch.size + sums * _FP32
    return of_input(model, batch) + round(batch.samples * model.seq_len * each)


def of_adapters(model: DecoderSpec, batch: ActivationBatch, lora: LoraSpec | None) -> int:
    """Return the bytes that the adapters of one block keep: the features between A and B. What
    frozen layers need not keep is not subtracted: inputs of layers without adapters, of the first
    norm and of the output layer."""
    if lora is None:
        return 0
    return batch.samples * model.seq_len * batch.size * lora.rank * len(adapted(model, lora))


def of_embedding(model: DecoderSpec, batch: ActivationBatch) -> int:
    """Return the bytes of the token ids."""
    return batch.samples * model.seq_len * _TOKEN


def of_documents(model: DecoderSpec, batch: ActivationBatch, blocks: int) -> int:
    """Return the bytes for documents that do not attend to each other: a mask for all blocks, and
    positions; or in so many of the blocks cosines and sines of each sample, instead of those of all
    samples."""
    mask = batch.samples * model.seq_len**2 * batch.size
    if isinstance(model, LlamaSpec):
        return mask + blocks * (batch.samples - 1) * _turns(model)
    return mask + of_embedding(model, batch)


def of_output(model: DecoderSpec, batch: ActivationBatch) -> int:
    """Return the bytes that the last norm and the output layer keep, without logits."""
    each = model.width / batch.tensor * batch.size + model.width * batch.size
    norm = 1 if isinstance(model, LlamaSpec) else 2
    return round(batch.samples * model.seq_len * (each + norm * _FP32 / batch.tensor))


def logits(model: DecoderSpec, batch: ActivationBatch) -> int:
    """Return the bytes of log probabilities, in fp32, that the loss keeps."""
    return batch.samples * model.seq_len * model.vocab * _FP32


def logits_peak(model: DecoderSpec, batch: ActivationBatch) -> int:
    """Return the same at the beginning of the backward pass, with the gradients of these and of the
    logits, all in fp32."""
    return 3 * logits(model, batch)


def _of_experts(model: DecoderSpec, tokens: int, size: int) -> int:
    """Return the bytes that the experts of a block keep, each with the same number of tokens, and
    their router, which computes in fp32."""
    if not isinstance(model, GptSpec) or model.experts is None:
        return 0
    width, taken = model.width, model.experts.top_k
    scores = (width + model.experts.count + (taken + 1 if taken > 1 else 0)) * _FP32
    chosen = taken * (size + 3 * _TOKEN)  # gates; choice, order and its inverse
    rows = taken * (2 * width + 2 * expert_hidden(model)) * size
    weights = 0 if size == _FP32 else model.experts.count * width * _FP32
    return tokens * (scores + chosen + rows) + weights


def gradients_of_block(model: DecoderSpec, batch: ActivationBatch) -> int:
    """Return the short-lived bytes in the backward pass of a block at its widest point: gradients
    of the residual stream and around the perceptron's nonlinearity; or those around plain
    attention, when the memory of the perceptron is freed."""
    if isinstance(model, LlamaSpec):
        inner = 3 * model.hidden
    else:
        taken = model.experts.top_k if model.experts else 1
        inner = taken * expert_hidden(model)  # the last matrix's input is freed with its gradient
    tokens, wide = batch.samples * model.seq_len, inner * batch.size
    if batch.is_plain:
        left = (model.width * (1 + batch.tensor) + _of_perceptron(model)) * batch.size
        left += _of_experts(model, tokens, batch.size) // tokens
        wide = max(wide, 2 * model.heads * model.seq_len * _FP32 - left)
    return round(tokens * (model.width * batch.size + wide / batch.tensor))


def _turns(model: DecoderSpec) -> int:
    """Return the bytes of the cosines and sines of rotary positions, of which each block makes its
    own."""
    if not isinstance(model, LlamaSpec):
        return 0
    return 2 * model.seq_len * (model.width // model.heads) * _FP32
