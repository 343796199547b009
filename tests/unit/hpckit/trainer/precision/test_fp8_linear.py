"""Linear layers in fp8 are close to those in fp32, forward and backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hpckit.config.spec import DecoderSpec
from hpckit.trainer.models.model_builder import make
from hpckit.trainer.precision.fp8_linear import lack_of_fp8, linear, use_fp8
from tests.unit.hpckit.trainer.models.test_decoders import gpt, llama

SIXTEENS = st.integers(1, 6).map(lambda count: 16 * count)


def error(found: Tensor, exact: Tensor) -> float:
    return float(((found.float() - exact).norm() / exact.norm()).detach())


@settings(max_examples=30, deadline=None)
@given(rows=SIXTEENS, features=SIXTEENS, outputs=SIXTEENS, size=st.sampled_from([1e-6, 1.0, 1e4]))
def test_products_and_gradients_are_close(
    rows: int, features: int, outputs: int, size: float
) -> None:
    """e4m3 has four bits of precision and e5m2 three: errors of up to 1/16 and 1/8 of a number,
    which in sums of random sign are as large against the sum."""
    generator = torch.Generator().manual_seed(rows)
    x = (size * torch.randn(2, rows, features, generator=generator)).requires_grad_()
    weight = torch.randn(outputs, features, generator=generator).requires_grad_()
    bias = torch.randn(outputs, generator=generator).requires_grad_()
    upward = torch.randn(2, rows, outputs, generator=generator)
    exact = nn.functional.linear(x, weight, bias)
    exact_gradients = torch.autograd.grad(exact, (x, weight, bias), upward)
    small = [t.detach().bfloat16().requires_grad_() for t in (x, weight, bias)]
    out = linear(*small)
    gradients = torch.autograd.grad(out, small, upward.bfloat16())
    assert out.dtype == torch.bfloat16
    assert error(out, exact) < 0.06
    of_x, of_weight, of_bias = map(error, gradients, exact_gradients)
    assert of_x < 0.12
    assert of_weight < 0.12
    assert of_bias < 0.02


def test_zeros_stay_zeros() -> None:
    assert not linear(torch.zeros(16, 16), torch.ones(16, 16), None).any()


@pytest.mark.parametrize("size", [gpt(), llama()])
def test_the_linear_layers_of_blocks_use_it_by_their_old_names(
    size: DecoderSpec,
) -> None:
    model = make(size, 1)
    names = list(model.state_dict())
    tokens = torch.randint(0, 257, (1, 32), generator=torch.Generator().manual_seed(2))
    exact = model(tokens)
    model.to(torch.bfloat16)
    use_fp8(model.blocks.values())
    found = model(tokens)
    assert list(model.state_dict()) == names
    assert 1e-4 < error(found, exact) < 0.06
    assert {type(m) for m in model.modules() if isinstance(m, nn.Linear)} > {nn.Linear} or (
        not hasattr(model, "output")
    )


def test_a_cpu_has_none() -> None:
    assert lack_of_fp8(torch.device("cpu")) is not None
