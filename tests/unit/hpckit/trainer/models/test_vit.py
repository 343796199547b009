"""The vision transformer: its size, its start, and that it computes what transformers' does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from transformers import ViTConfig, ViTModel

from hpckit.config.spec import VitSpec
from hpckit.submit.compose import compose_spec
from hpckit.trainer.models.model_builder import build, make
from hpckit.trainer.models.vit import ViT, sincos_positions

SMALL = VitSpec(
    "vit", classes=5, layers=2, heads=2, width=32, patch=8, image_size=32, positions="sincos"
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def composed(*overrides: str) -> VitSpec:
    spec = compose_spec(["experiment=images", "data.shards=/data", "model=vit_s16", *overrides])
    assert isinstance(spec.model, VitSpec)
    return spec.model


@pytest.mark.parametrize(
    ("positions", "more"), [("sincos", 0), ("learned", 14 * 14 * 384)], ids=str
)
def test_s16_has_as_many_parameters_as_in_the_paper(positions: str, more: int) -> None:
    """22.05 M with a class token and its position, which there are none of here."""
    model = build(composed(f"model.positions={positions}"))
    found = sum(parameter.numel() for parameter in model.parameters())
    assert found == 22_050_664 - 384 - 197 * 384 + more


@pytest.mark.parametrize("positions", ["sincos", "learned"])
def test_it_computes_what_transformers_does(positions: Literal["sincos", "learned"]) -> None:
    size = replace(SMALL, positions=positions)
    model = make(size, seed=1)
    assert isinstance(model, ViT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.rand(parameter.shape))
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    there = reference(size, model)
    x = there.embeddings.patch_embeddings(images) + model.positions
    for layer in there.layers:
        x = layer(x, None)
    expected = model.head(there.layernorm(x).mean(1))
    assert expected.std() > 0.01
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


def reference(size: VitSpec, model: ViT) -> ViTModel:
    """The same layers, with the parameters of `model`; of each head query, key, value in turn here,
    there by themselves."""
    about = ViTConfig(
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
        image_size=size.image_size,
        patch_size=size.patch,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-5,
    )
    there: ViTModel = ViTModel(about, add_pooling_layer=False)  # without dropout
    state = model.state_dict()
    names = {
        "attention.out": "attention.o_proj",
        "norm_attention": "layernorm_before",
        "norm_mlp": "layernorm_after",
        "mlp.up": "mlp.fc1",
        "mlp.down": "mlp.fc2",
    }
    found = {}
    for kind in ("weight", "bias"):
        found[f"embeddings.patch_embeddings.projection.{kind}"] = state[f"patches.{kind}"]
        found[f"layernorm.{kind}"] = state[f"norm.{kind}"]
        for n in range(size.layers):
            stacked = state[f"blocks.{n}.attention.qkv.{kind}"]
            parts = stacked.unflatten(0, (size.heads, 3, -1)).unbind(1)
            for name, part in zip("qkv", parts, strict=True):
                found[f"layers.{n}.attention.{name}_proj.{kind}"] = part.flatten(0, 1)
            for ours, theirs in names.items():
                found[f"layers.{n}.{theirs}.{kind}"] = state[f"blocks.{n}.{ours}.{kind}"]
    missing, unexpected = there.load_state_dict(found, strict=False)
    assert set(missing) == {"embeddings.cls_token", "embeddings.position_embeddings"}
    assert not unexpected
    return there


def test_before_training_every_class_is_as_likely() -> None:
    model = make(SMALL, seed=1)
    logits = model(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 5)
    assert (logits == 0).all()


def test_matrices_start_uniform_by_the_sizes_of_their_sides() -> None:
    model = make(replace(SMALL, width=128), seed=1)
    for name, parameter in model.named_parameters():
        if name.endswith("qkv.weight") or name.endswith("attention.out.weight"):
            assert parameter.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.05), name
        elif ".mlp." in name and name.endswith("weight"):
            assert parameter.std().item() == pytest.approx((2 / 640) ** 0.5, rel=0.05), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name


def test_waves_tell_rows_and_columns_apart() -> None:
    found = sincos_positions(4, 8)
    assert found.shape == (16, 8)
    assert len({tuple(place.tolist()) for place in found}) == 16
    of_columns, of_rows = found[:, :4], found[:, 4:]
    assert torch.equal(of_columns[:4], of_columns[4:8])
    assert torch.equal(of_rows[:4], of_rows[:1].expand(4, -1))
    assert found[1, 0] == pytest.approx(math.sin(1))
    assert found[1, 3] == pytest.approx(math.cos(1 / 10_000))


def test_fixed_positions_are_no_part_of_what_is_saved() -> None:
    assert "positions" not in build(SMALL).state_dict()
    assert "positions" in build(replace(SMALL, positions="learned")).state_dict()
