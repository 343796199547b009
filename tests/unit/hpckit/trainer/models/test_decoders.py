"""The decoders: their sizes, their start, and that they cannot see ahead."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hpckit.config.spec import DecoderSpec, ExpertsSpec, GptSpec, LlamaSpec
from hpckit.trainer.batches.byte_text import PADDING, VOCAB
from hpckit.trainer.batches.token_windows import shifted
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.models.decoder import INIT_STD, DecoderModel
from hpckit.trainer.models.model_builder import make


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def gpt(layers: int = 2, width: int = 64) -> GptSpec:
    return GptSpec(
        "gpt", vocab=VOCAB, layers=layers, heads=4, width=width, seq_len=32, experts=None
    )


def moe(layers: int = 2, width: int = 64) -> GptSpec:
    """With experts of half the size."""
    experts = ExpertsSpec(count=4, top_k=2, hidden=2 * width, balance_rate=0.001)
    return replace(gpt(layers, width), experts=experts)


def llama(layers: int = 2, width: int = 64, tied: bool = False) -> LlamaSpec:
    return LlamaSpec(
        "llama",
        vocab=VOCAB,
        layers=layers,
        heads=4,
        kv_heads=2,
        width=width,
        hidden=3 * width,
        seq_len=32,
        rope_theta=10000.0,
        norm_eps=1e-5,
        tied=tied,
    )


BOTH = pytest.mark.parametrize("size", [gpt(), moe(), llama(), llama(tied=True)])


def loss_of(model: DecoderModel, batch: torch.Tensor) -> torch.Tensor:
    inputs, targets = shifted(batch)
    return sample_mean(model(inputs, targets), targets)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(5))


def parameters(size: DecoderSpec) -> int:
    return sum(parameter.numel() for parameter in make(size, 1).parameters())


@pytest.mark.parametrize(("layers", "width"), [(1, 16), (2, 64), (3, 32)])
def test_the_number_of_parameters_is_that_of_gpt2(layers: int, width: int) -> None:
    block = 12 * width**2 + 13 * width
    expected = (VOCAB + 32) * width + layers * block + 2 * width
    assert parameters(gpt(layers, width)) == expected


def test_experts_take_the_place_of_a_perceptron() -> None:
    size = moe(3, 32)
    router_and_experts = 4 * 32 + 4 * 2 * 32 * 64
    perceptron = 2 * 4 * 32 * 32 + 5 * 32
    assert parameters(size) - parameters(gpt(3, 32)) == 3 * (router_and_experts - perceptron)


@pytest.mark.parametrize(("tied", "tables"), [(True, 1), (False, 2)])
def test_the_number_of_parameters_is_that_of_llama(tied: bool, tables: int) -> None:
    width = 64
    block = (2 + 2 * 2 / 4) * width**2 + 3 * 3 * width**2 + 2 * width
    assert parameters(llama(3, width, tied)) == tables * VOCAB * width + 3 * block + width


@BOTH
def test_the_same_seed_gives_the_same_model_whatever_ran_before(size: DecoderSpec) -> None:
    first = make(size, 7).state_dict()
    torch.manual_seed(99)
    torch.rand(3)
    second, other = make(size, 7).state_dict(), make(size, 8).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    name = "embedding.token.weight"
    assert not torch.equal(first[name], other[name])
    other_name = "blocks.0.attention.out.weight"
    assert not torch.equal(first[name].flatten()[:64], first[other_name].flatten()[:64])


@pytest.mark.parametrize("size", [gpt(4, 128), moe(4, 128), llama(4, 128)])
def test_weights_start_as_gpt2s(size: DecoderSpec) -> None:
    for name, parameter in make(size, 1).named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            into_stream = name.endswith(("attention.out.weight", "mlp.down.weight", "experts.down"))
            std = INIT_STD / math.sqrt(8) if into_stream else INIT_STD
            assert parameter.std().item() == pytest.approx(std, rel=0.05), name
            assert abs(parameter.mean().item()) < 0.05 * INIT_STD, name


@BOTH
def test_no_token_is_seen_before_its_time(size: DecoderSpec) -> None:
    model, before = make(size, 1), tokens(1, 16)
    with torch.no_grad():
        logits = model(before)
        for time in (0, 1, 7, 15):
            after = before.clone()
            after[0, time] = (after[0, time] + 1) % VOCAB
            changed = model(after)
            assert torch.allclose(changed[0, :time], logits[0, :time], atol=1e-6)
            assert not torch.allclose(changed[0, time], logits[0, time], atol=1e-4)


@BOTH
def test_the_order_of_tokens_matters(size: DecoderSpec) -> None:
    model, before = make(size, 1), tokens(1, 16)
    after = before.clone()
    after[0, [2, 9]] = before[0, [9, 2]]
    with torch.no_grad():
        assert not torch.allclose(model(before)[0, -1], model(after)[0, -1], atol=1e-5)


@BOTH
def test_before_training_every_token_is_as_likely(size: DecoderSpec) -> None:
    with torch.no_grad():
        loss = loss_of(make(size, 1), tokens(16, 33)).item()
    assert loss == pytest.approx(math.log(VOCAB), abs=0.1)


def test_the_loss_does_not_depend_on_how_samples_are_grouped() -> None:
    model, batch = make(gpt(), 1), tokens(6, 33)
    for sample, length in enumerate((33, 2, 10, 33, 20, 5)):
        batch[sample, length:] = PADDING
    with torch.no_grad():
        whole = loss_of(model, batch)
        for parts in (2, 3, 6):
            means = [loss_of(model, part) for part in batch.chunk(parts)]
            assert torch.stack(means).mean() == pytest.approx(whole.item(), rel=1e-5)
        each = [loss_of(model, batch[[n]]) for n in (5, 0, 3, 1, 4, 2)]
    assert torch.stack(each).mean() == pytest.approx(whole.item(), rel=1e-5)


def test_padding_changes_neither_loss_nor_gradient() -> None:
    model, batch = make(gpt(), 1), tokens(2, 10)
    padded = torch.full((2, 20), PADDING)
    padded[:, :10] = batch
    found = []
    for one in (batch, padded):
        model.zero_grad()
        loss = loss_of(model, one)
        loss.backward()  # type: ignore[no-untyped-call]
        gradient = model.get_parameter("embedding.token.weight").grad
        assert gradient is not None
        found.append((loss.item(), gradient.clone()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-7)
