"""Shapes of the parameters of the models of `conf/model/`, and the part of them on a rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from hpckit.config.model_layers import adapted
from hpckit.config.parallel_degrees import shard_of_experts
from hpckit.config.spec import DecoderSpec, GptSpec, LlamaSpec, LoraSpec


@dataclass(frozen=True)
class ParameterShape:
    """The shape of a parameter."""

    shape: tuple[int, ...]
    divided: int | None = None
    """The dimension that tensor parallelism divides; None: each rank has all of it."""
    is_stack: bool = False
    """Whether it is a stack of experts, which expert parallelism divides."""

    def elements(self, tensor: int = 1, shard: int = 1, expert: int = 1) -> int:
        """Return the elements on the rank that has most, of `tensor` ranks that compute a layer
        together, `shard` that share a copy (FSDP2), and `expert` that share experts: all divide the
        first dimension."""
        sizes = list(self.shape)
        if self.divided is not None:
            sizes[self.divided] = -(-sizes[self.divided] // tensor)
        if self.is_stack:
            sizes[0] //= expert
            shard = shard_of_experts(shard, expert)
        return -(-sizes[0] // shard) * prod(sizes[1:])


def elements(
    some: Iterable[ParameterShape], tensor: int = 1, shard: int = 1, expert: int = 1
) -> int:
    """Return the elements of all these together, as of `ParameterShape.elements`."""
    return sum(one.elements(tensor, shard, expert) for one in some)


def parameters(model: DecoderSpec) -> Iterator[ParameterShape]:
    """Return all parameters of a model."""
    yield from ends(model, is_first=True, is_last=True)
    for _ in range(model.layers):
        yield from block(model)


def ends(model: DecoderSpec, *, is_first: bool, is_last: bool) -> Iterator[ParameterShape]:
    """Return the parameters beside the blocks of a part of a model: the embedding if it is the
    first part, the output layer if it is the last, which may be the same tensor."""
    width, table = model.width, ParameterShape((model.vocab, model.width), 0)
    if is_first or (is_last and _is_tied(model)):
        yield table
    if isinstance(model, GptSpec):
        yield from [ParameterShape((model.seq_len, width))] if is_first else []
        yield from [ParameterShape((width,)), ParameterShape((width,))] if is_last else []
        return
    if is_last:
        yield ParameterShape((width,))
        yield from [] if model.tied else [table]


def block(model: DecoderSpec) -> list[ParameterShape]:
    """Return the parameters of one block."""
    if isinstance(model, LlamaSpec):
        return _llama_block(model)
    width, vector = model.width, ParameterShape((model.width,))
    return [
        *(vector, vector),
        *(ParameterShape((3 * width, width), 0), ParameterShape((3 * width,), 0)),
        *(ParameterShape((width, width), 1), vector),
        *(vector, vector),
        *_perceptron(model),
    ]


def _perceptron(model: GptSpec) -> list[ParameterShape]:
    width, experts = model.width, model.experts
    if experts is None:
        return [
            *(ParameterShape((4 * width, width), 0), ParameterShape((4 * width,), 0)),
            *(ParameterShape((width, 4 * width), 1), ParameterShape((width,))),
        ]
    count, hidden = experts.count, expert_hidden(model)
    return [
        ParameterShape((count, width)),
        ParameterShape((count, hidden, width), is_stack=True),
        ParameterShape((count, width, hidden), is_stack=True),
    ]


def expert_hidden(model: GptSpec) -> int:
    """Return the number of features inside of an expert, or of the perceptron of a block."""
    return (model.experts and model.experts.hidden) or 4 * model.width


def adapters(model: DecoderSpec, lora: LoraSpec | None) -> list[ParameterShape]:
    """Return the adapters of one block, A and B of each layer that has them; none without
    `lora`."""
    if lora is None:
        return []
    found = []
    for layer in adapted(model, lora).values():
        is_row = layer.divided == 1
        found.append(ParameterShape((lora.rank, layer.inputs), 1 if is_row else None))
        found.append(ParameterShape((layer.outputs, lora.rank), None if is_row else 0))
    return found


def adapter_count(model: DecoderSpec, lora: LoraSpec | None) -> int:
    """Return the number of parameters of all adapters."""
    return model.layers * elements(adapters(model, lora))


def trained_count(model: DecoderSpec, lora: LoraSpec | None) -> int:
    """Return the number of trained parameters: all, or those of adapters."""
    return elements(parameters(model)) if lora is None else adapter_count(model, lora)


def key_width(model: DecoderSpec) -> int:
    """Return the number of features of all keys of a position, which is that of its values too."""
    heads = model.kv_heads if isinstance(model, LlamaSpec) else model.heads
    return model.width // model.heads * heads


def _llama_block(model: LlamaSpec) -> list[ParameterShape]:
    width, hidden, shared = model.width, model.hidden, key_width(model)
    vector, key = ParameterShape((width,)), ParameterShape((shared, width), 0)
    return [
        *(vector, ParameterShape((width, width), 0), key, key, ParameterShape((width, width), 1)),
        *(vector, ParameterShape((hidden, width), 0), ParameterShape((hidden, width), 0)),
        ParameterShape((width, hidden), 1),
    ]


def _is_tied(model: DecoderSpec) -> bool:
    return isinstance(model, GptSpec) or model.tied
