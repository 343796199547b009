"""One process takes itself for the first rank of many."""

from __future__ import annotations

import re

import pytest

from hpckit.planner.memory.decoder_memory import footprint, footprints
from hpckit.submit.compose import compose_spec
from hpckit.submit.launch_command import main
from hpckit.trainer.memory.fake_step import fake_step
from tests.effort import some

SMALL = ("model=gpt_nano", "model.layers=4", "model.heads=4", "train.global_batch=64")


def shown(capsys: pytest.CaptureFixture[str], *overrides: str) -> tuple[int, str]:
    """What `launch.py --fake-world` says, in this process: another one would import torch first."""
    small = [word for word in SMALL if word.partition("=")[0] != overrides[0].partition("=")[0]]
    status = main(["--fake-world", *small, *overrides])
    said = capsys.readouterr()
    return status, said.out + said.err


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
def test_the_state_of_one_rank_is_its_share(
    capsys: pytest.CaptureFixture[str], way: tuple[str, ...], parts: int, words: str
) -> None:
    status, text = shown(
        capsys, "launch.nodes=8", "launch.nproc_per_node=8", "model.width=512", *way
    )
    assert status == 0, text
    assert text.startswith(f"rank 0 of 64 ({words}), at the peak of a step:\n")
    blocks, tokens = 4 * 12 * 512**2, (257 + 64) * 512
    adam = 1 if "optim=muon" in way else 2
    expected = 4 * (adam * blocks + 2 * tokens) / parts / 2**20
    assert mebibytes(text, "OptState") == pytest.approx(expected, rel=0.05)


LONG = (*SMALL, "parallel=fsdp", "model.seq_len=256")
WIDE = (*SMALL, "train.micro_batch=8")
LIKE_THE_PLAN = {
    "alone": (*WIDE, "launch.nodes=1"),
    "copies": (*WIDE, "parallel=ddp"),
    "zero1": (*WIDE, "parallel=zero1"),
    "fsdp_tp": (*WIDE, "parallel=fsdp_tp", "parallel.tensor=2"),
    "all in bf16": (*WIDE, "parallel=fsdp", "precision=bf16_pure"),
    "fp16": (*WIDE, "parallel=fsdp", "precision=fp16"),
    "micro-batches": (*SMALL, "parallel=fsdp", "train.micro_batch=2"),
    "micro-batches of copies": (*SMALL, "parallel=ddp", "train.micro_batch=2"),
    "plain attention": (*LONG, "memory.attention=math"),
    "plain, selective": (
        *LONG,
        "memory.attention=math",
        "memory.activation_checkpointing=selective",
    ),
    "plain, recomputed": (*LONG, "memory.attention=math", "memory.activation_checkpointing=full"),
    "experts": ("model=gpt_moe_nano", *SMALL[1:], "parallel=fsdp", "precision=bf16"),
}


_ALWAYS = (
    *("zero1", "fsdp_tp", "all in bf16", "micro-batches", "plain, selective"),
    *("plain attention", "experts"),
)


@pytest.mark.parametrize("case", some(_ALWAYS, sorted(LIKE_THE_PLAN.keys() - {*_ALWAYS})))
def test_a_step_takes_what_is_planned(case: str) -> None:
    spec = compose_spec(["launch.nodes=8", *LIKE_THE_PLAN[case]])
    planned = footprint(spec, spec.launch.nodes).peak.total
    assert fake_step(spec)["Total"] == pytest.approx(planned, rel=0.05)


IMAGES = ("experiment=images", "data.shards=/data", "launch.nodes=4", "train.global_batch=32")
FEWER = ("model=resnet50", "model.depths=[1,2,2,1]")
OF_IMAGES = {
    "copies": (*FEWER, "parallel=ddp", "train.micro_batch=8"),
    "sharded": (*FEWER, "parallel=fsdp", "train.micro_batch=4", "precision=bf16"),
    "all of its layers": (
        *("model=resnet50", "parallel=fsdp", "train.micro_batch=4", "precision=bf16"),
    ),
    "again": (
        *(*FEWER, "parallel=fsdp", "train.micro_batch=8"),
        "memory.activation_checkpointing=full",
    ),
    "vit": ("model=vit_s16", "model.layers=6", "parallel=fsdp", "train.micro_batch=8"),
    "vit, again": (
        *("model=vit_s16", "model.layers=4", "parallel=fsdp", "train.micro_batch=4"),
        "precision=bf16",
        "memory.activation_checkpointing=full",
    ),
}


@pytest.mark.parametrize(
    "case", some(["sharded", "vit, again"], ["copies", "all of its layers", "again", "vit"])
)
def test_a_step_of_images_takes_what_is_planned(case: str) -> None:
    spec = compose_spec([*IMAGES, *OF_IMAGES[case]])
    found = fake_step(spec)
    assert found["Inputs"] == 8 * (3 * 224**2 * 4 + 8)
    planned = footprint(spec, 4).peak.total
    is_copied = spec.precision.compute != "fp32"  # else what is kept of images is an input
    kept = 0 if is_copied else spec.train.micro_batch * 3 * 224**2 * 4
    assert found["Total"] - found["Inputs"] + kept == pytest.approx(planned, rel=0.05)


PIPELINES = {
    "1f1b": ("launch.nodes=4", "parallel=pp", "train.micro_batch=8"),
    "sharded, divided": (
        *("launch.nodes=8", "parallel=3d", "parallel.shard=2", "parallel.tensor=2"),
        *("parallel.replicate=1", "parallel.schedule=interleaved", "precision=bf16"),
        "train.micro_batch=8",
    ),
}


@pytest.mark.parametrize("case", PIPELINES)
def test_each_group_of_layers_takes_what_is_planned(case: str) -> None:
    spec = compose_spec([*SMALL, *PIPELINES[case]])
    planned = footprints(spec, spec.launch.nodes)
    for stage, one in enumerate(planned):
        found = fake_step(spec, stage * (spec.launch.nodes // len(planned)))
        assert found["Total"] == pytest.approx(one.peak.total, rel=0.08), stage


EXPERTS = ("model=gpt_moe_nano", "train.global_batch=64")


def test_ranks_that_share_experts_take_what_is_planned() -> None:
    ways = ("precision=bf16", "launch.nodes=4", "parallel=fsdp", "parallel.expert=2")
    spec = compose_spec([*EXPERTS, *ways])
    assert fake_step(spec)["Total"] == pytest.approx(footprint(spec, 4).peak.total, rel=0.02)


@pytest.mark.parametrize(
    ("words", "key"),
    [(EXPERTS, "precision.compute"), ((*SMALL, "memory=compiled"), "memory.compile")],
)
def test_what_cannot_be_without_numbers_is_refused(words: tuple[str, ...], key: str) -> None:
    with pytest.raises(ValueError, match=f"^{key}: a fake world has "):
        fake_step(compose_spec([*words]))


def test_a_pipeline_is_shown_for_each_group_of_layers_and_a_refusal_in_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, text = shown(capsys, "launch.nodes=2", "parallel=pp", "train.micro_batch=16")
    assert status == 0, text
    first, second = text.split("rank 1 of 2 (pp 2 (1f1b)), at the peak of a step:\n")
    assert first.startswith("rank 0 of 2 (pp 2 (1f1b)), at the peak of a step:\n")
    assert mebibytes(first, "Total") > mebibytes(second, "Total") > 0
    status, text = shown(capsys, "memory=compiled")
    assert status == 2, text
    assert "memory.compile: a fake world has no memory" in text
