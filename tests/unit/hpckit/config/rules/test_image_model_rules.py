"""Models of images: what cannot work is refused by its key, with a way out."""

from __future__ import annotations

from typing import Any

import pytest

from hpckit.config.entry_points import IMAGES, LANGUAGE_MODEL
from tests.unit.hpckit.specs_and_processes import violations_of

TWO = {"launch.nodes": 2, "parallel.shard": 1}
FP8 = {"precision.compute": "fp8", "cluster.device": "cuda"}
OFFLOAD = {"memory.cpu_offload": True, "cluster.device": "cuda"}
MUON = {"optim.kind": "muon", "optim.momentum": 0.9}
IMAGES_OF = {"augment": True, "label_smoothing": 0.1}


def complaints(model: str, changes: dict[str, Any]) -> list[str]:
    return violations_of(changes, model=model)


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("gpt_nano", {"entry": IMAGES}, ["model.kind: ", "data.images: is required"]),
        ("gpt_nano", {"data.images": IMAGES_OF}, ["data.images: must be null"]),
        ("vit_nano", {"data.images": None}, ["data.images: is required"]),
        (
            "vit_nano",
            {"entry": LANGUAGE_MODEL},
            [f"entry: {LANGUAGE_MODEL} trains decoders, not a vit", "data.images: must be null"],
        ),
        ("vit_nano", {"model.heads": 3}, ["model.heads: 3 heads do not divide"]),
        ("vit_nano", {"model.patch": 7}, ["model.patch: 7 does not divide model.image_size=32"]),
        ("vit_nano", {"model.width": 62}, ["model.width: 62 is not a multiple of 4"]),
        ("resnet_nano", {"model.image_size": 16, "train.micro_batch": 1}, ["train.micro_batch: 1"]),
        ("vit_nano", {**TWO, "parallel.tensor": 2}, ["parallel.tensor: a vit cannot be divided"]),
        (
            "resnet_nano",
            {**TWO, "parallel.pipeline": 2, "train.micro_batch": 4},
            ["parallel.pipeline: a resnet cannot be divided"],
        ),
        ("vit_nano", FP8, ["precision.compute: a vit cannot be computed in fp8"]),
        ("vit_nano", OFFLOAD, ["memory.cpu_offload: a vit cannot be offloaded"]),
        ("vit_nano", {"memory.loss_chunks": 2}, ["memory.loss_chunks: a vit has one label"]),
        (
            "resnet_nano",
            {"memory.activation_checkpointing": "selective"},
            ["memory.activation_checkpointing: selective keeps"],
        ),
        (
            "resnet_nano",
            {"memory.attention": "math"},
            ["memory.attention: a resnet has no attention"],
        ),
        ("resnet_nano", MUON, ["optim.kind: the blocks of a resnet have no matrices"]),
        (
            "resnet_nano",
            {"optim.kind": "sgd"},
            [f"optim.{name}: " for name in ("momentum", "beta1", "beta2", "eps")],
        ),
    ],
)
def test_what_cannot_work_is_refused(model: str, changes: dict[str, Any], said: list[str]) -> None:
    found = complaints(model, changes)
    assert len(found) == len(said), found
    assert all(line.startswith(start) for line, start in zip(found, said, strict=True)), found


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (
            "vit_nano",
            {**MUON, "memory.activation_checkpointing": "selective", "memory.attention": "math"},
        ),
        ("vit_nano", {"model.width": 62, "model.positions": "learned"}),
        ("resnet_nano", {"memory.activation_checkpointing": "full", "precision.compute": "bf16"}),
        ("resnet_nano", {"model.image_size": 17, "train.micro_batch": 1}),
        ("resnet_nano", {"launch.nodes": 4, "parallel.replicate": 2, "parallel.shard": 2}),
        ("resnet_nano", {"optim.grad_clip": None, "optim.ema_decay": 0.99}),
        ("resnet_nano", {"entry": "mine:main", "data.images": None}),
    ],
)
def test_what_works_is_let_through(model: str, changes: dict[str, Any]) -> None:
    assert complaints(model, changes) == []
