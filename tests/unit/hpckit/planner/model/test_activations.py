"""Bytes of activations beside what autograd keeps of real models.

On the CPU: its fused attention keeps its output and a number per head and position, as CUDA's flash
attention does. It has no fused RMSNorm, whose parts keep two tensors in fp32 where a fused one
keeps its input: these are added to what is expected here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import pytest
import torch

from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import DecoderSpec, ExpertsSpec, LlamaSpec, RunSpec
from hpckit.planner.memory.decoder_memory import footprint
from hpckit.planner.model import activations as of
from hpckit.planner.model.activations import ActivationBatch, Recompute
from hpckit.submit.compose import compose_spec
from hpckit.trainer.device.attention_kernel import choose_attention
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.memory import activation_recompute as recomputing
from hpckit.trainer.models.model_builder import make
from tests.saved_tensors import SavedBytes

SAMPLES = 3
Number = Literal["fp32", "bf16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ONE_EACH = ExpertsSpec(count=8, top_k=1, hidden=None, balance_rate=0.0)
SIZES: dict[str, dict[str, Any]] = {
    "gpt": {"model": "gpt_nano"},
    "gpt, wide": {"model": "gpt_nano", "width": 192, "heads": 6, "layers": 5, "vocab": 1024},
    "experts": {"model": "gpt_moe_nano"},
    "experts, one each": {"model": "gpt_moe_nano", "layers": 3, "experts": ONE_EACH},
    "llama": {"model": "llama_nano"},
    "llama, tied": {"model": "llama_nano", "width": 128, "heads": 8, "hidden": 512, "tied": True},
    "llama, long": {"model": "llama_nano", "layers": 3, "seq_len": 192, "vocab": 512},
}


@cache
def composed(model: str) -> RunSpec:
    batch = (f"train.global_batch={SAMPLES}", f"train.micro_batch={SAMPLES}")
    return compose_spec([f"model={model}", *batch, "parallel=ddp"])


def spec_of(size: Mapping[str, Any], number: Number) -> RunSpec:
    """Of a model of `conf/model/` with other values."""
    spec = composed(size["model"])
    changes = {key: value for key, value in size.items() if key != "model"}
    return replace(
        spec,
        model=replace(spec.model, **changes),
        precision=replace(spec.precision, compute=number),
    )


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("number", ["fp32", "bf16"])
@pytest.mark.parametrize("size", SIZES)
def test_what_is_kept_is_what_autograd_keeps(
    size: str, number: Number, recompute: Recompute
) -> None:
    spec = spec_of(SIZES[size], number)
    spec = replace(spec, memory=replace(spec.memory, activation_checkpointing=recompute))
    found = measured(decoder_of(spec), number, recompute)
    moment = footprint(spec, 1).moments["loss"]
    batch = ActivationBatch(SAMPLES, 2 if number == "bf16" else 4, 1)
    expected = moment.activations + of.logits(decoder_of(spec), batch)
    expected += composite_norms(decoder_of(spec), number, recompute)
    assert found == pytest.approx(expected, rel=0.1)
    if recompute == "none":
        assert found == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("number", ["fp32", "bf16"])
@pytest.mark.parametrize("size", ["gpt", "gpt, wide", "experts", "llama", "llama, long"])
def test_plain_attention_keeps_a_number_for_each_pair_of_positions(
    size: str, number: Number
) -> None:
    fused = spec_of(SIZES[size], number)
    model = replace(decoder_of(fused), seq_len=256)
    fused = replace(fused, model=model)
    spec = replace(fused, memory=replace(fused.memory, attention="math"))
    choose_attention("math")
    try:
        found = measured(model, number, "none")
    finally:
        choose_attention("auto")
    kept, less = (footprint(each, 1).moments["loss"].activations for each in (spec, fused))
    expected = kept + of.logits(model, ActivationBatch(SAMPLES, 2 if number == "bf16" else 4, 1))
    expected += composite_norms(model, number, "none")
    assert found == pytest.approx(expected, rel=0.01)
    assert kept - less > 0.9 * model.layers * SAMPLES * model.heads * 256**2 * 4


def test_recomputing_keeps_less_and_a_larger_batch_more() -> None:
    spec = spec_of({"model": "llama_8b"}, "bf16")
    kept = footprint(spec, 1).moments["loss"].activations
    some, again = (
        footprint(
            replace(spec, memory=replace(spec.memory, activation_checkpointing=how)), 1
        ).moments["loss"]
        for how in ("selective", "full")
    )
    assert 10 * again.activations < 2 * some.activations < kept
    one, two = (of.of_block(decoder_of(spec), ActivationBatch(n, 2, 1)) for n in (1, 2))
    assert 1.99 * one < two <= 2 * one


def test_korthikantis_count_is_ours_without_dropout() -> None:
    """Their 34 s b h of a block are 32 without the masks of dropout, in numbers of two bytes; what
    attention keeps of each pair of positions, 5 a s^2 b, it need not with a fused kernel."""
    model = decoder_of(spec_of({"model": "gpt2"}, "bf16"))
    tokens = model.seq_len * model.width
    assert of.of_block(model, ActivationBatch(1, 2, 1)) == pytest.approx(32 * tokens, rel=0.01)


@pytest.mark.parametrize("size", SIZES)
def test_documents_that_do_not_see_each_other_cost_a_mask(size: str) -> None:
    spec = spec_of(SIZES[size], "fp32")
    packed = replace(spec, data=replace(spec.data, text="tokens", pack=None))
    model = decoder_of(spec)
    extra = measured(model, "fp32", "none", documents=True) - measured(model, "fp32", "none")
    plain, apart = (footprint(each, 1).moments["loss"].activations for each in (spec, packed))
    assert apart - plain >= SAMPLES * model.seq_len**2 * 4
    assert extra == pytest.approx(apart - plain, rel=0.02)


def measured(
    size: DecoderSpec, number: Number, recompute: Recompute, *, documents: bool = False
) -> int:
    """Bytes at the beginning of a backward pass."""
    model = make(size, seed=1).to(DTYPES[number])
    recomputing.recompute(model.blocks.values(), recompute)
    tokens = torch.randint(size.vocab, (SAMPLES, size.seq_len))
    with SavedBytes().counting() as saved:
        inside = torch.zeros_like(tokens) if documents else None
        loss = sample_mean(model(tokens, tokens, inside), tokens)
    held = saved.now
    loss.backward()  # type: ignore[no-untyped-call]
    assert saved.now == 0
    return held


def composite_norms(size: DecoderSpec, number: Number, recompute: Recompute) -> int:
    """What RMSNorm keeps on the CPU beside what a fused one does: its output before the weights,
    and in bf16 both that and the input in fp32 instead of the input."""
    if not isinstance(size, LlamaSpec):
        return 0
    norms = 1 + (2 * size.layers if recompute == "none" else 0)
    extra = 4 if number == "fp32" else 8 - 2
    return norms * extra * SAMPLES * size.seq_len * size.width
