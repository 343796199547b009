"""Bytes of a model's state on each rank, for the models of `conf/model/`. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from hpckit.run.batch import share_of_rank
from hpckit.run.degrees import degrees, describe
from hpckit.run.spec import GptSpec, LlamaSpec, ModelSpec, RunSpec

ENTRY = "hpckit.training.language_model:main"
"""The training function whose model is known."""
_MASTER = 4  # bytes: parameters, gradients and both moments of AdamW are fp32


def describe_memory(spec: RunSpec, world: int) -> str | None:
    """A line on what the largest of `world` ranks holds; None for another model than hpckit's."""
    model, parallel = spec.model, spec.parallel
    found = degrees(parallel, world)
    if spec.entry != ENTRY or found.model > 1:
        return None
    whole = sum(map(prod, shapes(model)))
    share = largest_share(model, found.shard)
    is_gathered = found.shard > 1 and parallel.zero < 3
    parts = max(1, share_of_rank(spec, world) // spec.train.micro_batch)
    gradients = whole if parts > 1 and parallel.reduce == "last" else share
    return (
        f"{whole:,} parameters ({describe(parallel, world)}); a rank holds {_mib(share)} of them"
        f"{f' and {_mib(whole)} gathered' if is_gathered else ''}, {_mib(gradients)} gradients, "
        f"{_mib(2 * share)} optimizer; beside that: activations, gathered layers, CUDA's own"
    )


def largest_share(model: ModelSpec, ranks: int) -> int:
    """Elements on the one of `ranks` that share a copy which has most: FSDP2 cuts each tensor along
    its first dimension."""
    return sum(-(-first // ranks) * prod(rest) for first, *rest in shapes(model))


def shapes(model: ModelSpec) -> Iterator[tuple[int, ...]]:
    """Of all parameters."""
    of_block = _of_llama_block(model) if isinstance(model, LlamaSpec) else _of_gpt_block(model)
    width = model.width
    yield model.vocab, width
    if isinstance(model, LlamaSpec):
        yield from [(width,)] if model.tied else [(width,), (model.vocab, width)]
    else:
        yield from ((model.seq_len, width), (width,), (width,))
    for _ in range(model.layers):
        yield from of_block


def _of_gpt_block(model: GptSpec) -> list[tuple[int, ...]]:
    width = model.width
    return [
        *((width,), (width,)),
        *((3 * width, width), (3 * width,), (width, width), (width,)),
        *((width,), (width,)),
        *((4 * width, width), (4 * width,), (width, 4 * width), (width,)),
    ]


def _of_llama_block(model: LlamaSpec) -> list[tuple[int, ...]]:
    width, hidden = model.width, model.hidden
    shared = model.kv_heads * width // model.heads
    return [
        *((width,), (width, width), (shared, width), (shared, width), (width, width)),
        *((width,), (hidden, width), (hidden, width), (width, hidden)),
    ]


def _mib(elements: int) -> str:
    return f"{elements * _MASTER / 2**20:,.1f} MiB"
