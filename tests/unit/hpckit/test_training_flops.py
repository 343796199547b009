"""FLOPs are those of the formula, and nobody's peak is guessed."""

from __future__ import annotations

import math

import pytest
import torch

from hpckit.launch.compose import compose_spec
from hpckit.training.flops import flops_per_token, known_peak, peak_flops
from hpckit.training.models.building import flops_of


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L4", 121e12),
        ("Tesla V100-SXM2-32GB", 125e12),
        ("Tesla V100-PCIE-16GB", 112e12),
        ("NVIDIA A10G", None),
        ("NVIDIA A1000", None),
        ("NVIDIA RTX A4000", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_the_peak_of_a_card_is_known_or_not(card: str, peak: float | None) -> None:
    assert peak_flops(card) == peak


def test_a_cpu_has_no_peak() -> None:
    assert math.isnan(known_peak(torch.device("cpu")))


def test_flops_of_a_token() -> None:
    assert flops_per_token(10, layers=2, width=3, length=5) == 6 * 10 + 12 * 2 * 3 * 5


@pytest.mark.parametrize(
    ("changes", "matrices"),
    [
        # qkv, out, up, down: 3 + 1 + 4 + 4 squares; and the embedding, as the output layer
        (["model=gpt_nano"], lambda m: 12 * m.layers * m.width**2 + m.vocab * m.width),
        # query, out; key, value; gate, up, down; the output layer
        (
            ["model=llama_nano"],
            lambda m: (
                m.layers
                * (
                    2 * m.width**2
                    + 2 * m.width * m.kv_heads * (m.width // m.heads)
                    + 3 * m.width * m.hidden
                )
                + m.vocab * m.width
            ),
        ),
    ],
)
@pytest.mark.parametrize("length", [32, 64])
def test_flops_of_the_models_are_those_of_their_matrices(
    changes: list[str], matrices: object, length: int
) -> None:
    size = compose_spec([*changes, f"model.seq_len={length}"]).model
    assert callable(matrices)
    expected = flops_per_token(matrices(size), size.layers, size.width, length)
    assert flops_of(size) == expected
