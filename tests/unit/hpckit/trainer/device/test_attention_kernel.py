"""The kernels that are said to compute attention are those that do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from hpckit.config.spec import DecoderSpec
from hpckit.trainer.device import attention_kernel
from hpckit.trainer.device.attention_kernel import (
    VARLEN_OPTIONS,
    attention_in_use,
    check_varlen_attention,
    choose_attention,
)
from hpckit.trainer.errors import TrainingError
from tests.unit.hpckit.trainer.models.test_decoders import gpt, llama

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _all_again() -> Iterator[None]:
    yield
    choose_attention("auto")


def computed_by() -> str:
    x = torch.randn(1, 2, 16, 8, requires_grad=True)
    return str(functional.scaled_dot_product_attention(x, x, x, is_causal=True).grad_fn)


@pytest.mark.parametrize("size", [gpt(), llama()])
@pytest.mark.parametrize(
    ("asked", "found"), [("auto", "flash"), ("flash", "flash"), ("math", "math")]
)
def test_what_is_asked_for_is_used(asked: str, found: str, size: DecoderSpec) -> None:
    choose_attention(asked)
    assert attention_in_use(size, 2, 1, torch.bfloat16, CPU) == found
    assert ("FlashAttention" in computed_by()) is (found == "flash")


@pytest.mark.parametrize("asked", ["efficient", "cudnn"])
def test_what_cannot_run_is_refused(asked: str) -> None:
    choose_attention(asked)
    with pytest.raises(
        TrainingError, match=r"memory\.attention: no kernel .* heads of 16 features"
    ):
        attention_in_use(gpt(), 2, 1, torch.float32, CPU)


@pytest.mark.parametrize("missing", [set(), {"enable_gqa"}, VARLEN_OPTIONS])
def test_attention_of_varying_lengths_needs_a_torch_that_has_its_options(
    monkeypatch: pytest.MonkeyPatch, missing: set[str]
) -> None:
    monkeypatch.setattr(attention_kernel, "_options_of_varlen", lambda: VARLEN_OPTIONS - missing)
    cuda = torch.device("cuda")
    check_varlen_attention(CPU, torch.float32)
    with pytest.raises(TrainingError, match="computes in bf16 or fp16"):
        check_varlen_attention(cuda, torch.float32)
    if not missing:
        check_varlen_attention(cuda, torch.bfloat16)
        return
    with pytest.raises(TrainingError, match=r"varlen needs torch 2\.12 or newer"):
        check_varlen_attention(cuda, torch.bfloat16)
