"""The model: its size, its start, and that it cannot see ahead."""

from __future__ import annotations

import math

import pytest
import torch

from hpckit.training.gpt import GPT, INIT_STD
from hpckit.training.language_model import sample_mean_loss
from hpckit.training.text import PADDING, VOCAB


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def model(seed: int = 1, layers: int = 2, width: int = 64) -> GPT:
    gpt = GPT(vocab=VOCAB, layers=layers, heads=4, width=width, seq_len=32)
    gpt.initialise(seed)
    return gpt


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(("layers", "width"), [(1, 16), (2, 64), (3, 32)])
def test_the_number_of_parameters_is_that_of_gpt2(layers: int, width: int) -> None:
    block = 12 * width**2 + 13 * width
    expected = (VOCAB + 32) * width + layers * block + 2 * width
    count = sum(parameter.numel() for parameter in model(layers=layers, width=width).parameters())
    assert count == expected


def test_the_same_seed_gives_the_same_model_whatever_ran_before() -> None:
    first = model(seed=7).state_dict()
    torch.manual_seed(99)
    torch.rand(3)
    second, other = model(seed=7).state_dict(), model(seed=8).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["token.weight"], other["token.weight"])


def test_weights_start_as_gpt2s() -> None:
    gpt = model(layers=4, width=128)
    for name, parameter in gpt.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            into_stream = name.endswith(("attention.out.weight", "mlp_out.weight"))
            std = INIT_STD / math.sqrt(8) if into_stream else INIT_STD
            assert parameter.std().item() == pytest.approx(std, rel=0.05), name
            assert abs(parameter.mean().item()) < 0.05 * INIT_STD, name


def test_no_token_is_seen_before_its_time() -> None:
    gpt, before = model(), tokens(1, 16)
    with torch.no_grad():
        logits = gpt(before)
        for time in (0, 1, 7, 15):
            after = before.clone()
            after[0, time] = (after[0, time] + 1) % VOCAB
            changed = gpt(after)
            assert torch.allclose(changed[0, :time], logits[0, :time], atol=1e-6)
            assert not torch.allclose(changed[0, time], logits[0, time], atol=1e-4)


def test_the_order_of_tokens_matters() -> None:
    gpt, before = model(), tokens(1, 16)
    after = before.clone()
    after[0, [2, 9]] = before[0, [9, 2]]
    with torch.no_grad():
        assert not torch.allclose(gpt(before)[0, -1], gpt(after)[0, -1], atol=1e-4)


def test_before_training_every_token_is_as_likely() -> None:
    with torch.no_grad():
        loss = sample_mean_loss(model(), tokens(16, 33)).item()
    assert loss == pytest.approx(math.log(VOCAB), abs=0.1)


def test_the_loss_does_not_depend_on_how_samples_are_grouped() -> None:
    gpt, batch = model(), tokens(6, 33)
    for sample, length in enumerate((33, 2, 10, 33, 20, 5)):
        batch[sample, length:] = PADDING
    with torch.no_grad():
        whole = sample_mean_loss(gpt, batch)
        for parts in (2, 3, 6):
            means = [sample_mean_loss(gpt, part) for part in batch.chunk(parts)]
            assert torch.stack(means).mean() == pytest.approx(whole.item(), rel=1e-5)
        each = [sample_mean_loss(gpt, batch[[n]]) for n in (5, 0, 3, 1, 4, 2)]
    assert torch.stack(each).mean() == pytest.approx(whole.item(), rel=1e-5)


def test_padding_changes_neither_loss_nor_gradient() -> None:
    gpt, batch = model(), tokens(2, 10)
    padded = torch.full((2, 20), PADDING)
    padded[:, :10] = batch
    found = []
    for one in (batch, padded):
        gpt.zero_grad()
        loss = sample_mean_loss(gpt, one)
        loss.backward()  # type: ignore[no-untyped-call]
        assert gpt.token.weight.grad is not None
        found.append((loss.item(), gpt.token.weight.grad.clone()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-7)
