"""Experts beside a loop over tokens; what balances them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hpckit.config.spec import ExpertsSpec
from hpckit.trainer.models.mixture_of_experts import MixtureOfExperts

WIDTH, HIDDEN = 16, 24


def layer(count: int, per_token: int) -> MixtureOfExperts:
    size = ExpertsSpec(count=count, top_k=per_token, hidden=HIDDEN, balance_rate=0.1)
    made = MixtureOfExperts(WIDTH, size)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
        made.router.bias.normal_(0.0, 0.1, generator=generator)
    return made


def by_loop(made: MixtureOfExperts, x: Tensor) -> Tensor:
    """What each token's experts make of it, token by token."""
    out = []
    for token in x.reshape(-1, WIDTH):
        scores = torch.sigmoid(made.router.weight @ token)
        biased = (scores.detach() + made.router.bias).tolist()
        ranked = sorted(range(len(biased)), key=biased.__getitem__, reverse=True)
        chosen = ranked[: made.router.per_token]
        total = sum(scores[i] for i in chosen) if len(chosen) > 1 else 1.0
        mixed: Any = 0.0
        for i in chosen:
            inner = functional.gelu(made.experts.up[i] @ token, approximate="tanh")
            mixed = mixed + scores[i] / total * (made.experts.down[i] @ inner)
        out.append(mixed)
    return torch.stack(out).view_as(x)


@pytest.mark.parametrize(("count", "per_token"), [(1, 1), (4, 1), (4, 2), (5, 3), (64, 2), (3, 3)])
def test_they_compute_what_a_loop_does(count: int, per_token: int) -> None:
    made, x = layer(count, per_token), torch.randn(2, 9, WIDTH, requires_grad=True)
    weights = torch.randn(x.shape)
    inputs = [x, *made.parameters()]
    outs = [made(x), by_loop(made, x)]
    torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
    found, expected = (
        torch.autograd.grad((out * weights).sum(), inputs, materialize_grads=True) for out in outs
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert all(gradient.abs().sum() > 0 for gradient in found), "all learn, the router too"


def test_an_expert_without_tokens_has_a_gradient_of_zeros() -> None:
    made = layer(4, 1)
    made.router.bias.copy_(torch.tensor([0.0, 9.0, 0.0, 0.0]))
    made(torch.randn(1, 5, WIDTH)).sum().backward()
    gradient = made.experts.up.grad
    assert gradient is not None
    assert gradient.abs().sum((1, 2)).bool().tolist() == [False, True, False, False]
    assert made.router.load.tolist() == [0, 5, 0, 0]


def test_experts_to_which_no_token_comes_at_all_go_backward() -> None:
    """As on a rank whose experts nobody chose."""
    experts = layer(2, 1).experts
    rows = torch.empty(0, WIDTH, requires_grad=True)
    out = experts(rows, torch.zeros(2, dtype=torch.int64))
    out.backward(torch.empty(0, WIDTH))
    assert rows.grad is not None
    assert rows.grad.shape == (0, WIDTH)
    assert experts.up.grad is not None
    assert not experts.up.grad.any()
    assert experts.down.grad is not None
    assert not experts.down.grad.any()


def test_only_training_counts_tokens() -> None:
    made, x = layer(4, 2), torch.randn(3, 7, WIDTH)
    with torch.no_grad():
        made(x)
    assert made.router.load.sum() == 0
    made(x)
    made(x)
    assert made.router.load.sum() == 2 * 2 * 21


def test_a_bias_moves_towards_the_mean_load() -> None:
    router = layer(4, 2).router
    before = router.bias.clone()
    router.load += 5
    router.balance(torch.tensor([10, 30, 20, 20]), 0.5)
    assert torch.equal(router.bias - before, torch.tensor([0.5, -0.5, 0.0, 0.0]))
    assert router.load.sum() == 0


def test_balancing_evens_out_what_experts_get() -> None:
    made, x = layer(8, 2), torch.randn(4, 64, WIDTH)
    fullest = []
    for _ in range(80):
        made(x)
        load = made.router.load.clone()
        fullest.append(float(load.max() / load.float().mean()))
        made.router.balance(load, 0.01)
    assert fullest[0] > 1.5
    assert fullest[-1] < 1.2


def test_gates_are_of_scores_and_not_of_biases() -> None:
    made, tokens = layer(4, 4), torch.randn(6, WIDTH)
    chosen, gates = made.router(tokens)
    made.router.bias += torch.tensor([3.0, -2.0, 0.5, 0.0])
    again, same = made.router(tokens)
    by_expert = gates.gather(1, chosen.argsort(1)), same.gather(1, again.argsort(1))
    torch.testing.assert_close(*by_expert)
    torch.testing.assert_close(gates.sum(1), torch.ones(6))
