"""Counts of operations, cards, and how often to save: beside published numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import DecoderSpec, GptSpec
from hpckit.planner.goodput.save_interval import goodput, useful
from hpckit.planner.gpu_cards import CARDS, find_card, recognise
from hpckit.planner.model.flops import (
    attention_per_token,
    computed_per_token,
    parameter_count,
    per_token,
    product_parameters,
)
from hpckit.submit.compose import compose_spec

GPT3 = GptSpec(
    kind="gpt", vocab=50257, layers=96, heads=96, width=12288, seq_len=2048, experts=None
)


def model(option: str) -> DecoderSpec:
    return decoder_of(compose_spec([f"model={option}"]))


def test_gpt3_takes_what_its_authors_say() -> None:
    """Brown et al. 2020, table D.1: 174,600 M parameters, 300 G tokens, 3.14e23."""
    assert parameter_count(GPT3) == pytest.approx(174.6e9, rel=0.001)
    products = 300e9 * (per_token(GPT3) - attention_per_token(GPT3))
    assert products == pytest.approx(3.14e23, rel=0.002)
    assert attention_per_token(GPT3) == 12 * 96 * 12288 * 2048


@pytest.mark.parametrize(("option", "known"), [("llama_8b", 8.03e9), ("llama_70b", 70.6e9)])
def test_llama_has_as_many_parameters_as_its_authors_say(option: str, known: float) -> None:
    assert parameter_count(model(option)) == pytest.approx(known, rel=0.001)


def test_a_table_that_is_only_looked_up_computes_nothing() -> None:
    size = model("llama_8b")
    assert parameter_count(size) - product_parameters(size) == 128256 * 4096
    assert product_parameters(model("llama_1b")) == parameter_count(model("llama_1b"))


def test_only_the_experts_that_a_token_goes_through_compute() -> None:
    size, dense = model("gpt2_moe"), model("gpt2")
    layers, width, hidden = size.layers, size.width, 4 * size.width
    perceptron, biases, router = 2 * width * hidden, hidden + width, 8 * width
    more = layers * (2 * perceptron + router - perceptron - biases)
    assert product_parameters(size) == product_parameters(dense) + more
    assert parameter_count(size) == parameter_count(dense) + more + layers * 6 * perceptron


@pytest.mark.parametrize("option", ["gpt2", "gpt2_moe", "llama_8b"])
def test_computing_blocks_again_is_up_to_a_third_more(option: str) -> None:
    size = model(option)
    assert computed_per_token(size, "none") == per_token(size)
    assert 1.2 < computed_per_token(size, "full") / per_token(size) < 4 / 3


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "H100"),
        ("nvidia_h100_80gb_hbm3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("a100", "A100-80"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("gh200", None),
        ("l40s", None),
        ("rtx", None),
    ],
)
def test_cards_are_recognised_by_what_sites_and_drivers_call_them(
    text: str, name: str | None
) -> None:
    found = recognise(text)
    assert (found and found.name) == name


def test_cards_have_the_rates_of_their_data_sheets() -> None:
    assert [*CARDS] == ["V100", "A100-40", "A100-80", "H100", "H200", "B200"]
    assert find_card("a100") is CARDS["A100-80"]
    assert find_card("h200").memory_gib == 141
    assert CARDS["V100"].peak("bf16") is None
    assert CARDS["A100-40"].peak("fp8") is None
    for card in CARDS.values():
        rates = [card.tflops[name] for name in ("fp32", "bf16", "fp8") if name in card.tflops]
        assert rates == sorted(rates)
        assert card.network_gbps < card.nvlink_gbps < card.memory_gbps
    with pytest.raises(KeyError):
        find_card("H1000")


def test_young_and_dalys_interval_is_taken() -> None:
    found = goodput(mtbf_s=86400.0, stall_s=10.0, durable_s=60.0)
    assert found.interval_s == pytest.approx(math.sqrt(2 * 10 * 86400))
    assert goodput(86400.0, stall_s=0.1, durable_s=900.0).interval_s == 900.0


@given(st.floats(1, 60), st.floats(3600, 10**6))
def test_no_other_interval_is_better_by_much(stall_s: float, mtbf_s: float) -> None:
    best = math.sqrt(2 * stall_s * mtbf_s)
    chosen = useful(best, stall_s, 100.0, mtbf_s)
    others = (useful(best * by, stall_s, 100.0, mtbf_s) for by in (0.25, 0.5, 0.9, 1.1, 2, 4))
    assert max(others) <= chosen + 0.005


@given(st.floats(10, 10**4), st.floats(0, 100), st.floats(0, 10**4), st.floats(100, 10**6))
def test_more_failures_and_dearer_saves_train_less(
    interval_s: float, stall_s: float, restart_s: float, mtbf_s: float
) -> None:
    found = useful(interval_s, stall_s, restart_s, mtbf_s)
    assert 0 <= found <= 1
    assert useful(interval_s, stall_s, restart_s, mtbf_s * 2) >= found
    assert useful(interval_s, stall_s + 1, restart_s, mtbf_s) <= found
    assert useful(interval_s, stall_s, restart_s + 1, mtbf_s) <= found


def test_a_job_that_fails_before_it_can_start_gets_nowhere() -> None:
    assert useful(10.0, 1.0, 10**6, 60.0) == 0.0


def test_nothing_fails_nothing_is_lost() -> None:
    values: dict[str, Any] = {"interval_s": 1000.0, "stall_s": 0.0, "restart_s": 100.0}
    assert useful(**values, mtbf_s=1e12) == pytest.approx(1.0)
