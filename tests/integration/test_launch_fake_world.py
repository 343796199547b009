"""One process takes itself for the first rank of many."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from hpckit.launch.compose import compose_spec
from hpckit.training.fakeworld import fake_step
from tests.integration.runs import REPO

SMALL = ("model=gpt_nano", "model.layers=4", "model.heads=4", "train.global_batch=64")


def shown(*overrides: str) -> tuple[int, str]:
    small = [word for word in SMALL if word.partition("=")[0] != overrides[0].partition("=")[0]]
    command = [sys.executable, str(REPO / "launch.py"), "--fake-world", *small, *overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def mebibytes(text: str, name: str) -> float:
    found = re.search(rf"^  {name} +([\d,.]+) MiB$", text, re.MULTILINE)
    assert found, text
    return float(found[1].replace(",", ""))


@pytest.mark.parametrize(
    ("way", "parts", "words"),
    [
        (("parallel=fsdp", "optim=muon"), 64, "fsdp"),
        (("parallel=fsdp_tp", "parallel.tensor=4"), 64, "tp 4, fsdp"),
    ],
    ids=["fsdp", "fsdp_tp"],
)
def test_the_state_of_one_rank_is_its_share(way: tuple[str, ...], parts: int, words: str) -> None:
    status, text = shown("launch.nodes=8", "launch.gpus_per_node=8", "model.width=512", *way)
    assert status == 0, text
    assert text.startswith(f"rank 0 of 64 ({words}), at the peak of a step:\n")
    blocks, tokens = 4 * 12 * 512**2, (257 + 64) * 512
    adam = 1 if "optim=muon" in way else 2
    expected = 4 * (adam * blocks + 2 * tokens) / parts / 2**20
    assert mebibytes(text, "OptState") == pytest.approx(expected, rel=0.05)


def test_a_model_of_images_is_refused() -> None:
    spec = compose_spec(["experiment=images", "data.shards=/data"])
    with pytest.raises(ValueError, match="a fake world has no images for a resnet"):
        fake_step(spec)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("launch.nodes=2", "parallel=pp", "train.micro_batch=16"), "parallel.pipeline"),
        (("model=gpt_moe_nano",), "model.experts"),
    ],
)
def test_what_cannot_be_without_ranks_or_numbers_is_refused(
    words: tuple[str, ...], key: str
) -> None:
    status, text = shown(*words)
    assert status == 2, text
    assert f"{key}: " in text
