"""Which layers have adapters, what these weigh in a plan, and what is refused before a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hpckit.config.model_layers import adapted, layers
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import InitFromSpec
from hpckit.config.spec_parser import SpecError
from hpckit.planner.memory.decoder_memory import checkpoint_bytes, footprint
from hpckit.planner.model.flops import attention_per_token, per_token
from hpckit.planner.model.parameter_shapes import adapter_count
from hpckit.rundir.run_origin import find_origin, start_folders
from hpckit.trainer.models.lora import adapt, is_adapter, merged
from hpckit.trainer.models.model_builder import build, make
from hpckit.trainer.optim import build_ema, build_optimizer
from tests.unit.hpckit.specs_and_processes import make_spec

MODELS = pytest.mark.parametrize("model", ["gpt_nano", "llama_nano"])


@MODELS
def test_the_layers_are_those_of_the_model(model: str) -> None:
    size = decoder_of(make_spec(model=model))
    decoder = build(size)
    (block, *_) = decoder.blocks.values()
    there = {n: layer for n, layer in block.named_modules() if isinstance(layer, nn.Linear)}
    told = layers(size)
    assert there.keys() == told.keys()
    for name, layer in told.items():
        assert there[name].weight.shape == (layer.outputs, layer.inputs)
        assert name in (decoder.COLUMNS, decoder.ROWS)[layer.divided]


@MODELS
@pytest.mark.parametrize("asked", [["attention"], ["mlp.up", "attention.out"], ["mlp"]])
def test_adapters_alone_are_trained_and_averaged(model: str, asked: list[str]) -> None:
    spec = make_spec({"lora.target_modules": asked}, model=model, lora="default")
    assert spec.lora is not None
    size = decoder_of(spec)
    decoder = make(size, seed=1)
    before = sum(p.numel() for p in decoder.parameters())
    adapt(decoder, decoder_of(spec), spec.lora)
    trained = {name: p for name, p in decoder.named_parameters() if p.requires_grad}
    assert all(is_adapter(name) for name in trained)
    assert len(trained) == 2 * len(adapted(size, spec.lora)) * size.layers
    assert sum(p.numel() for p in decoder.parameters()) - before == adapter_count(size, spec.lora)
    optimizer = build_optimizer(decoder, spec.optim)
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {
        id(p) for p in trained.values()
    }
    ema = build_ema(decoder, 0.5)
    assert ema is not None
    assert ema.state_dict().keys() == trained.keys()


def test_an_average_begins_once_more_with_what_was_read() -> None:
    layer = nn.Linear(3, 2)
    ema = build_ema(layer, 0.5)
    assert ema is not None
    with torch.no_grad():
        layer.weight.fill_(7.0)
    ema.restart()
    assert torch.equal(ema.state_dict()["weight"], layer.weight)


def test_merged_weights_compute_what_the_layer_does() -> None:
    torch.manual_seed(1)
    spec = make_spec({"lora.rank": 3}, lora="default")
    assert spec.lora is not None
    decoder = make(decoder_of(spec), seed=1)
    adapt(decoder, decoder_of(spec), spec.lora)
    layer: Any = decoder.get_submodule("blocks.1.mlp.down")
    nn.init.normal_(layer.lora_a)
    nn.init.normal_(layer.lora_b)
    x = torch.randn(5, layer.in_features)
    weight = merged(layer.weight, layer.lora_a, layer.lora_b, spec.lora)
    torch.testing.assert_close(layer(x), x @ weight.T + layer.bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"lora.target_modules": ["attn"]},
            "lora.target_modules: a gpt has no layer 'attn'; its layers are attention.qkv",
        ),
        (
            {"lora.target_modules": ["attention.q"]},
            "lora.target_modules: a gpt has no layer 'attention.q'",
        ),
        ({"lora.target_modules": []}, "lora.target_modules: is empty"),
        (
            {"lora.rank": 65, "lora.target_modules": ["mlp.up"]},
            "lora.rank: 65 is more than the rank of mlp.up itself",
        ),
    ],
)
def test_adapters_that_make_no_sense_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(changes, lora="default")
    (line,) = caught.value.violations
    assert line.startswith(told)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": "gpt_moe_nano", "lora": "default"}, "lora: adapters are not supported"),
        (
            {"model": "vit_nano", "lora": "default"},
            "lora: requires a decoder, not a vit",
        ),
        ({"model": "resnet_nano", "start": "checkpoint"}, "init_from: requires a decoder"),
    ],
)
def test_models_that_take_neither_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(None, **options)
    (line,) = caught.value.violations
    assert line.startswith(told)


@pytest.mark.parametrize(
    ("option", "changes", "told"),
    [
        ("checkpoint", {"init_from.item": None}, "init_from.item: is required"),
        ("huggingface", {"init_from.step": 3}, "init_from.step: must be null"),
        ("huggingface", {"init_from.item": "ema"}, "init_from.item: must be null"),
    ],
)
def test_keys_of_another_kind_of_start_are_refused(
    option: str, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(changes, start=option)
    (line,) = caught.value.violations
    assert line.startswith(told)


@pytest.mark.parametrize(
    ("path", "url", "run"),
    [
        ("s3://bucket/base/runs/gpt-1a2b3c4d", "s3://bucket/base", "gpt-1a2b3c4d"),
        ("/ckpts/runs/gpt/steps/", "/ckpts", "gpt"),
    ],
)
def test_a_run_in_a_store_is_found_by_its_place(path: str, url: str, run: str) -> None:
    origin = find_origin(path)
    assert (origin.url, origin.run, origin.spec) == (url, run, None)


def test_files_that_are_links_are_mounted_where_they_are(tmp_path: Path) -> None:
    """As in the cache of Hugging Face's hub."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1a2b").touch()
    (snapshot / "model.safetensors").symlink_to(blobs / "1a2b")
    start = InitFromSpec(kind="huggingface", path=str(snapshot), step=None, item=None)
    assert start_folders(start) == [snapshot, blobs]


def test_frozen_parameters_cost_a_third_less_and_no_gradients() -> None:
    plain = make_spec({"precision.compute": "bf16"}, model="llama_nano")
    tuned = make_spec({"precision.compute": "bf16"}, model="llama_nano", lora="default")
    model = decoder_of(tuned)
    count = adapter_count(model, tuned.lora)
    products = per_token(model) - attention_per_token(model)
    assert per_token(model, tuned.lora) - attention_per_token(model) == products * 2 / 3 + 6 * count
    before, after = (footprint(spec, 1).moments["optimizer"] for spec in (plain, tuned))
    assert after.parameters == before.parameters + 4 * count
    assert after.gradients == 4 * count
    assert after.optimizer == 8 * count
    assert checkpoint_bytes(tuned) == before.parameters + 3 * 4 * count


def test_an_average_is_counted_in_fp32_whatever_the_parameters_are() -> None:
    for master, size in (("fp32", 4), ("bf16", 2)):
        about = {"precision.compute": "bf16", "precision.master": master}
        plain, averaged = (
            make_spec({**about, "optim.ema_decay": decay}, model="llama_nano")
            for decay in (None, 0.9)
        )
        count = checkpoint_bytes(plain) // (3 * size)
        assert checkpoint_bytes(averaged) - checkpoint_bytes(plain) == 4 * count
        before, after = (footprint(spec, 1).moments["optimizer"] for spec in (plain, averaged))
        assert after.optimizer - before.optimizer == 4 * count
