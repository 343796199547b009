"""The linear layers of a block of a model, by name. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpckit.run.spec import DecoderSpec, GptSpec, LoraSpec


@dataclass(frozen=True)
class Layer:
    """Its weight is (outputs, inputs)."""

    outputs: int
    inputs: int
    divided: Literal[0, 1]
    """The dimension of its weight that tensor parallelism divides."""


def layers(model: DecoderSpec) -> dict[str, Layer]:
    """Those of any block."""
    width = model.width
    if isinstance(model, GptSpec):
        return {
            "attention.qkv": Layer(3 * width, width, 0),
            "attention.out": Layer(width, width, 1),
            "mlp.up": Layer(4 * width, width, 0),
            "mlp.down": Layer(width, 4 * width, 1),
        }
    keys, hidden = width // model.heads * model.kv_heads, model.hidden
    return {
        "attention.query": Layer(width, width, 0),
        "attention.key": Layer(keys, width, 0),
        "attention.value": Layer(keys, width, 0),
        "attention.out": Layer(width, width, 1),
        "mlp.gate": Layer(hidden, width, 0),
        "mlp.up": Layer(hidden, width, 0),
        "mlp.down": Layer(width, hidden, 1),
    }


def adapted(model: DecoderSpec, lora: LoraSpec) -> dict[str, Layer]:
    """Those that have adapters."""
    return {
        name: layer
        for name, layer in layers(model).items()
        if any(is_meant(name, asked) for asked in lora.layers)
    }


def is_meant(name: str, asked: str) -> bool:
    """Whether `asked` is the name of a layer, or the beginning of it."""
    return f"{name}.".startswith(f"{asked}.")
