"""The norm of gradients, in whatever format they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hpckit.trainer.parallel.gradient_norm import clip_gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_computed_in_fp32(tmp_path: Path, dtype: torch.dtype) -> None:
    dist.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    parameters = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in (1000, 7, 333)]
    for seed, each in enumerate(parameters):
        generator = torch.Generator().manual_seed(seed)
        each.grad = torch.randn(each.shape, generator=generator).to(dtype)
    whole = torch.cat([each.grad.double() for each in parameters if each.grad is not None])
    try:
        norm = clip_gradients(parameters, 1.0, stages=1, shared=[], device=torch.device("cpu"))
    finally:
        dist.destroy_process_group()
    assert norm.dtype == torch.float32
    torch.testing.assert_close(norm.double(), whole.norm(), rtol=1e-6, atol=0)
