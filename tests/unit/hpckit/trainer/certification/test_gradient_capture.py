"""What is kept of gradients, and that parameters, buffers and generators are left as they were."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hpckit.trainer.certification.batch_exchange import problem_of, repacked
from hpckit.trainer.certification.computation_check import relative_difference
from hpckit.trainer.certification.gradient_capture import (
    GradientCapture,
    figures,
    lack_of_capture,
)
from hpckit.trainer.random_seeds import kept_generators, seed_all
from tests.unit.hpckit.trainer.bit_flips import flip_products


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))


def test_parameters_and_buffers_are_left_as_they_were() -> None:
    model, given = network(), torch.rand(4, 6)
    model(given).sum().backward()
    before = [one.clone() for one in (*model.parameters(), *model.buffers())]
    gradients = [parameter.grad for parameter in model.parameters()]
    copies = [one.clone() for one in gradients if one is not None]
    capture = GradientCapture({"model": model})
    found = [capture.take(lambda: model(given).square().sum().backward()) for _ in range(2)]
    assert found[0].digest == found[1].digest
    assert capture.names == [f"model.{name}" for name, _ in model.named_parameters()]
    after = [*model.parameters(), *model.buffers()]
    assert all(map(torch.equal, before, after))
    assert [parameter.grad for parameter in model.parameters()] == gradients
    assert all(map(torch.equal, copies, [one for one in gradients if one is not None]))
    flip_products(model)
    wrong = capture.take(lambda: model(given).square().sum().backward())
    assert wrong.digest != found[0].digest
    assert relative_difference(wrong.figures, found[0].figures).max() > 1e-6


def test_a_gradient_of_zeros_is_a_gradient() -> None:
    model, given = network(), torch.rand(4, 6)
    capture = GradientCapture({"model": model})
    assert capture.take(lambda: (0 * model(given)).sum().backward()).count == len(capture.names)
    assert capture.take(lambda: None).count == 0


def test_an_overflow_on_both_ranks_is_no_difference() -> None:
    inf, nan = float("inf"), float("nan")
    one = torch.tensor([[inf, nan], [inf, nan], [2.0, 1.0], [2.0, 1.0], [0.0, 0.0]])
    other = torch.tensor([[inf, nan], [2.0, 1.0], [inf, inf], [2.0, 1.5], [0.0, 0.0]])
    expected = [0.0, inf, inf, 0.25, 0.0]
    assert relative_difference(one.double(), other.double()).tolist() == expected


def test_a_shared_parameter_counts_once_and_a_frozen_one_not() -> None:
    model = network()
    model.add_module("again", model[0])
    model[3].bias.requires_grad = False
    capture = GradientCapture({"model": model, "other": model[3]})
    assert "model.0.weight" in capture.names
    assert "model.3.bias" not in capture.names
    assert len(capture.names) == len({id(p) for p in model.parameters() if p.requires_grad})


@pytest.mark.parametrize("shape", [(), (1,), (4096,), (7, 4099), ((1 << 22) + 5,)])
def test_figures_are_a_norm_and_a_projection(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    gradient = torch.randn(shape)
    norm, projection = figures(gradient).tolist()
    assert norm == pytest.approx(float(gradient.double().norm()))
    assert abs(projection) <= norm * (gradient.numel() ** 0.5) * (1 + 1e-5)
    changed = gradient.clone()
    changed.view(-1)[-1] += 1
    assert abs(figures(changed)[1] - projection) == pytest.approx(1, rel=1e-2)


def test_generators_go_on_as_if_nothing_was_drawn() -> None:
    def drawn() -> list[float]:
        return [float(torch.rand(())), float(np.random.rand()), random.random()]

    seed_all(3)
    expected = drawn()
    seed_all(3)
    with kept_generators():
        seed_all(4)
        assert drawn() != expected
    assert drawn() == expected


def test_copies_have_the_strides_of_their_tensors() -> None:
    images = torch.rand(2, 5, 4, 3).permute(0, 3, 1, 2)
    rows = torch.arange(24).view(6, 4)[::2]
    given: list[Tensor] = [images, rows, torch.tensor(1.5), torch.rand(0, 3), torch.rand(3) > 0.5]
    found = repacked(given)
    assert all(map(torch.equal, given, found))
    assert found[0].stride() == images.stride()
    assert found[1].is_contiguous()
    assert problem_of(given) is None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([torch.rand(1)] * 9, "9 tensors"),
        ([torch.rand(1), "text"], "a str, which is not a tensor"),
        ([torch.rand(2).to(torch.complex64)], "complex64"),
    ],
)
def test_what_cannot_be_sent_is_said(given: list[object], problem: str) -> None:
    assert problem in (problem_of(given) or "")


def test_modules_that_compute_together_cannot_be_checked() -> None:
    assert lack_of_capture([network()]) is None
    assert "SyncBatchNorm" in (lack_of_capture([nn.Sequential(nn.SyncBatchNorm(4))]) or "")
