"""Casts are those of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from checkpointing.follower.dtype_casts import TARGETS, cast, check_target, dtype_after
from checkpointing.format.torch_dtypes import as_array, torch_dtype

SOURCES = ("float64", *TARGETS)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of all sizes, ties, infinities and zeros."""
    generator = torch.Generator().manual_seed(0)
    usual = torch.randn(4096, generator=generator, dtype=torch.float64)
    sizes = usual * 10.0 ** torch.randint(-44, 39, (4096,), generator=generator)
    ties = (torch.arange(4096) * 32768 + 0x3F800000).to(torch.int32).view(torch.float32)
    odd = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 65519.9, 65520.0, 3.4e38, 1e-45])
    return torch.cat([usual, sizes, ties.double(), odd.double()]).to(dtype)


@pytest.mark.parametrize("wanted", TARGETS)
@pytest.mark.parametrize("stored", SOURCES)
def test_a_cast_has_the_bits_of_torch(stored: str, wanted: str) -> None:
    tensor = numbers(torch_dtype(stored))
    expected = tensor.float().to(torch_dtype(wanted))
    found = cast(as_array(tensor), stored, wanted)
    assert np.array_equal(found, as_array(expected)) or stored == wanted == "float64"


@pytest.mark.parametrize("wanted", TARGETS)
@pytest.mark.parametrize("stored", SOURCES)
def test_nan_stays_nan(stored: str, wanted: str) -> None:
    tensor = torch.tensor([float("nan"), -float("nan")], dtype=torch_dtype(stored))
    bits = cast(as_array(tensor), stored, wanted)
    back = torch.from_numpy(bits.view(f"i{bits.itemsize}")).view(torch_dtype(wanted))
    assert back.isnan().all()


def test_only_floating_point_numbers_are_cast() -> None:
    assert dtype_after("float32", "bfloat16") == "bfloat16"
    assert dtype_after("float32", None) == "float32"
    for dtype in ("int64", "bool", "complex64", "float8_e4m3fn"):
        assert dtype_after(dtype, "bfloat16") == dtype


def test_other_targets_are_refused() -> None:
    with pytest.raises(ValueError, match="can be cast to float32, float16, bfloat16"):
        check_target("int8")
