"""Which way of spreading a model fits, and how long its steps take."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import RunSpec
from hpckit.planner.assumptions import HOST_MEMORY_GBPS
from hpckit.planner.gpu_cards import CARDS
from hpckit.planner.memory.decoder_memory import footprint
from hpckit.planner.memory.layout_recommendation import (
    error_of,
    has_headroom,
    ladder,
    recommend,
    room,
)
from hpckit.planner.step_time import speed
from hpckit.submit.compose import compose_spec
from hpckit.trainer.models.model_builder import build

NODES, PER_NODE = 4, 8
WORLD = NODES * PER_NODE


@cache
def composed(*words: str) -> RunSpec:
    size = (f"launch.nodes={NODES}", f"launch.nproc_per_node={PER_NODE}")
    batch = ("train.global_batch=32", "train.micro_batch=1")
    return compose_spec([*size, *batch, "precision=bf16", *words])


def test_what_is_recommended_composes_to_what_was_looked_at() -> None:
    words = [([*words], parallel) for words, parallel in ladder(composed().parallel, 2, 2)]
    assert len(words) == 8
    for added, parallel in words:
        nodes = ("launch.nodes=2", "launch.nproc_per_node=2", "train.global_batch=16")
        model = ("model=gpt_moe_nano",) if parallel.expert > 1 else ()
        assert composed(*nodes, *model, *added).parallel == parallel


@pytest.mark.parametrize(
    ("model", "card", "first"),
    [
        ("gpt2", "V100", "parallel=ddp"),
        ("llama_1b", "A100-40", "parallel=zero1"),
        ("llama_8b", "H100", "parallel=fsdp"),
        ("llama_8b", "A100-40", "parallel=fsdp_tp"),
    ],
)
def test_the_simplest_that_fits_is_recommended(model: str, card: str, first: str) -> None:
    spec, on = composed(f"model={model}"), CARDS[card]
    choice = recommend(spec, NODES, on)
    assert choice is not None
    assert choice.words[0] == first
    assert choice.peak * 1.1 <= room(on)
    before = [words for words, _ in ladder(spec.parallel, NODES, PER_NODE)]
    for words in before[: before.index(choice.words)]:
        assert footprint(composed(f"model={model}", *words), WORLD).peak.total * 1.1 > room(on)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(
    "words",
    [
        ("model=gpt2", "train.global_batch=512", "train.micro_batch=16"),
        ("model=llama_1b", "train.global_batch=256", "train.micro_batch=8"),
        ("model=llama_8b", "parallel=zero1"),
        ("model=llama_8b", "train.global_batch=128", "train.micro_batch=4"),
        ("model=resnet50", "train.global_batch=8192", "train.micro_batch=256"),
    ],
)
def test_what_is_recommended_fits_even_if_the_estimate_is_wrong(
    words: tuple[str, ...], card: str
) -> None:
    """Whatever is recommended: the batch, the layout or activation checkpointing."""
    images = ("experiment=images", "data.shards=/data") if "model=resnet50" in words else ()
    spec = composed(*images, *words)
    choice = recommend(spec, NODES, CARDS[card])
    if choice is None:
        return
    again = composed(*images, *words, *choice.words)
    assert footprint(again, WORLD).peak.total == choice.peak
    assert choice.peak * (1 + error_of(spec)) <= room(CARDS[card])


@given(peak=st.integers(1, 2**40), available=st.integers(1, 2**40))
def test_headroom_is_at_least_the_error(peak: int, available: int) -> None:
    if has_headroom(peak, 0.1, available):
        assert 10 * (available - peak) >= peak * (1 - 1e-9)
    assert has_headroom(peak, 0.0, available) is (peak <= available)


def test_what_fits_nowhere_is_not_recommended() -> None:
    size = replace(decoder_of(composed("model=llama_70b")), layers=800)
    assert recommend(replace(composed("model=llama_70b"), model=size), NODES, CARDS["V100"]) is None


def test_each_step_of_the_ladder_holds_no_more_state_than_the_one_before() -> None:
    state = []
    for _, parallel in ladder(composed().parallel, NODES, PER_NODE):
        spec = replace(composed("model=llama_8b"), parallel=parallel)
        spec = replace(spec, train=replace(spec.train, global_batch=128))
        moment = footprint(spec, WORLD).moments["reduced"]
        state.append(moment.total)
    ways = [0, 1, 3, 5, 6, 7]  # all but those that trade a collective for memory of gradients
    assert [state[way] for way in ways] == sorted((state[way] for way in ways), reverse=True)


def test_a_step_takes_its_operations_at_the_assumed_rate() -> None:
    found = speed(composed("model=llama_8b"), WORLD, CARDS["H100"], 0.5)
    assert found.tokens == 32 * 8192
    alone = found.flops / WORLD / 989e12
    assert found.step.compute == pytest.approx(alone / 0.5)
    assert found.roofline.compute == pytest.approx(alone)
    assert found.utilisation == pytest.approx(alone / found.step.total)
    assert found.utilisation < 0.5
    assert found.tokens_per_s * found.step.total == pytest.approx(found.tokens)


def test_what_a_pipeline_waits_is_the_schedules_bubble() -> None:
    words = ("model=llama_8b", "parallel=pp", "parallel.replicate=-1", "parallel.pipeline=4")
    many = ("train.global_batch=128",)
    for schedule, stages in (("1f1b", 1), ("interleaved", 2)):
        spec = composed(*words, *many, f"parallel.schedule={schedule}")
        step = speed(spec, WORLD, CARDS["H100"], 0.4).step
        micro_batches = 128 // (WORLD // 4)
        assert step.bubble == pytest.approx(step.compute * 3 / (micro_batches * stages))


def test_tensor_parallelism_across_nodes_is_dearer_than_inside() -> None:
    inside = composed("model=llama_8b", "parallel=fsdp_tp", "parallel.tensor=8")
    across = replace(inside, launch=replace(inside.launch, nodes=WORLD, nproc_per_node=1))
    times = [speed(spec, WORLD, CARDS["H100"], 0.4).step.tensor for spec in (inside, across)]
    assert 5 < times[1] / times[0] < 10  # the rates of NVLink and of the network


def test_sharing_experts_costs_time_and_saves_memory() -> None:
    alone = composed("model=gpt2_moe")
    shared = [composed("model=gpt2_moe", f"parallel.expert={ranks}") for ranks in (2, 8)]
    times = [speed(spec, WORLD, CARDS["H100"], 0.4).step.expert for spec in (alone, *shared)]
    assert times[0] == 0.0 < times[1] < times[2]
    across = replace(shared[1], launch=replace(shared[1].launch, nodes=WORLD, nproc_per_node=1))
    assert speed(across, WORLD, CARDS["H100"], 0.4).step.expert > 5 * times[2]
    first, *others = (footprint(spec, WORLD).moments["backward"] for spec in (alone, *shared))
    assert first.gathered > others[0].gathered > others[1].gathered
    assert all(one.parameters == first.parameters for one in others), "all is shared anyway"


def test_communication_hides_behind_computation_as_far_as_it_goes() -> None:
    slow = replace(CARDS["H100"], network_gbps=0.5)
    spec = composed("model=llama_8b")
    fast, held_up = (speed(spec, WORLD, card, 0.4) for card in (CARDS["H100"], slow))
    assert fast.step.data == 0.0
    assert held_up.step.data > held_up.step.compute
    assert held_up.roofline.bound == "network"


def test_what_is_in_the_hosts_memory_comes_and_goes_by_its_link() -> None:
    words = ("model=llama_8b", "train.global_batch=64", "cluster.device=cuda")
    here, there = (
        speed(composed(*words, memory), WORLD, CARDS["H100"], 0.4)
        for memory in ("memory=activation_checkpointing", "memory=offload")
    )
    assert (here.step.offload, here.roofline.host) == (0.0, 0.0)
    part = 8.03e9 / WORLD
    copied = 2 * 2 * 4 * part / 64e9  # two micro-batches, each forward and backward
    stepped = 7 * 4 * part / (HOST_MEMORY_GBPS * 1e9)
    assert there.roofline.host == pytest.approx(copied + stepped, rel=0.001)
    assert there.step.optimizer == pytest.approx(stepped, rel=0.001)
    assert there.step.optimizer > 10 * here.step.optimizer
    assert there.roofline.memory < here.roofline.memory
    assert there.step.offload == 0.0, "a large batch hides it"
    slow = replace(CARDS["H100"], host_gbps=0.1)
    waits = speed(composed(*words, "memory=offload"), WORLD, slow, 0.4)
    assert waits.step.offload == pytest.approx(640 * copied - waits.step.compute, rel=0.001)
    assert waits.roofline.bound == "host"


def test_logits_of_a_loss_in_parts_are_computed_again() -> None:
    whole, parts = (
        speed(composed("model=llama_8b", f"memory.loss_chunks={n}"), WORLD, CARDS["H100"], 0.4)
        for n in (1, 16)
    )
    again = 2 * 128256 * 4096 * whole.tokens / WORLD / 989e12
    assert parts.roofline.compute - whole.roofline.compute == pytest.approx(again)
    assert parts.flops == whole.flops, "what the model needs is the same"


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("model", ["gpt2", "llama_8b"])
def test_fp8_makes_the_linear_layers_of_blocks_faster_alone(model: str, recompute: str) -> None:
    words = (
        f"model={model}",
        f"memory.activation_checkpointing={recompute}",
        "cluster.device=cuda",
    )
    slow, fast = (composed(*words, f"precision={name}") for name in ("bf16", "fp8"))
    sixteen, eight = (speed(spec, WORLD, CARDS["H100"], 0.4) for spec in (slow, fast))
    size, tokens = decoder_of(slow), sixteen.tokens / WORLD
    layers = [
        [one.weight.numel() for one in block.modules() if isinstance(one, nn.Linear)]
        for block in build(size).blocks.values()
    ]
    weights, again = sum(map(sum, layers)), sum(sum(each[1::2]) for each in layers)
    computed = {"none": 6 * weights, "selective": 6 * weights + 2 * again, "full": 8 * weights}
    saved = tokens * computed[recompute] * (1 / 989e12 - 1 / 1979e12)
    assert sixteen.roofline.compute - eight.roofline.compute == pytest.approx(saved)


def test_a_format_that_a_card_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"precision.compute: the V100 does not support bf16"):
        speed(composed(), WORLD, CARDS["V100"], 0.4)
