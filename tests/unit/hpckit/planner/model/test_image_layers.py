"""Counts of models of images: beside real ones, what torch counts, and published numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hpckit.config.spec import ImageSpec, ResnetSpec, VitSpec
from hpckit.planner.model.image_layers import parameter_count, per_sample
from hpckit.submit.compose import compose_spec
from hpckit.trainer.models.model_builder import build
from tests.effort import times

RESNETS = st.builds(
    ResnetSpec,
    kind=st.just("resnet"),
    classes=st.integers(2, 20),
    depths=st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple),
    channels=st.integers(1, 8),
    image_size=st.integers(33, 80),
    sync_norm=st.booleans(),
)
VITS = st.builds(
    lambda layers, heads, each, patch, side, positions: VitSpec(
        "vit", 7, layers, heads, 4 * heads * each, patch, patch * side, positions
    ),
    *(st.integers(1, 3) for _ in range(3)),
    patch=st.integers(1, 8),
    side=st.integers(1, 6),
    positions=st.sampled_from(["sincos", "learned"]),
)


def model(option: str) -> ImageSpec:
    spec = compose_spec(["experiment=images", "data.shards=/data", f"model={option}"])
    assert isinstance(spec.model, ImageSpec)
    return spec.model


@settings(deadline=None, max_examples=times(15))
@given(size=RESNETS | VITS)
def test_all_is_counted_as_torch_does(size: ImageSpec) -> None:
    real = build(size)
    assert parameter_count(size) == sum(parameter.numel() for parameter in real.parameters())
    with torch.device("meta"):
        images = torch.empty(2, 3, size.image_size, size.image_size)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        real(images).sum().backward()
    assert counter.get_total_flops() == 2 * per_sample(size)


@pytest.mark.parametrize(
    ("option", "parameters", "multiplications"),
    [("resnet50", 25_557_032, 4.09e9), ("vit_s16", 21_974_632, 4.6e9)],
)
def test_the_large_ones_are_as_large_as_is_known(
    option: str, parameters: int, multiplications: float
) -> None:
    """Multiplications with additions, forward: torchvision's table, and Touvron et al. 2021."""
    size = model(option)
    assert parameter_count(size) == parameters
    assert per_sample(size) / 6 == pytest.approx(multiplications, rel=0.02)
