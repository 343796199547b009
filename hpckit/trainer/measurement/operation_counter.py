"""Counts the floating-point operations and the bytes of each operation that torch executes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from hpckit.torch_internals import TorchDispatchMode, written_arguments


@dataclass
class OperationCount:
    """What all calls of an operation add up to."""

    calls: int = 0
    flops: float = 0.0
    bytes: float = 0.0


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations in a block, those of the backward pass, too. An operation that torch makes
    of others counts as these; one that only makes a view counts with no bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: dict[str, OperationCount] = {}
        """The counts by name, as in `aten::addmm`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(kind is Tensor or kind is nn.Parameter for kind in types):
            return NotImplemented  # a subclass calls operations of plain tensors in its turn
        given = kwargs or {}
        result = func(*args, **given)
        if not hasattr(func, "overloadpacket"):
            return result  # an operator of higher order, whose parts are counted
        count = self.counts.setdefault(_name(func), OperationCount())
        count.calls += 1
        count.flops += _flops(func, args, given, result)
        count.bytes += _bytes(func, args, given, result)
        return result


def _name(func: Any) -> str:
    return f"{func.namespace}::{func.overloadpacket.__name__}"


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> float:
    formula = _OWN.get(_name(func)) or flop_registry.get(func.overloadpacket)
    return 0.0 if formula is None else float(formula(*args, **kwargs, out_val=result))


_MOVE_NOTHING = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *("_reshape_alias", "_unsafe_view", "lift_fresh"),
    )
)
"""Operations that allocate memory, or make a view that torch does not declare as one."""
_ONLY_WRITE = frozenset(
    f"aten::{name}_"
    for name in (
        *("copy", "fill", "zero", "_foreach_copy", "_foreach_zero"),
        *("bernoulli", "exponential", "normal", "random", "uniform"),
    )
)
"""Operations that do not read what they write to."""


def _bytes(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return what an operation reads and writes: what it writes to is read, too, unless that is its
    output alone."""
    name = _name(func)
    if func.is_view or name in _MOVE_NOTHING:
        return 0
    changed = list(_tensors(written_arguments(func, args, kwargs)))
    changed_ids = {id(one) for one in changed}
    unread = changed if name in _ONLY_WRITE else _tensors(kwargs.get("out"))
    unread_ids = {id(one) for one in unread}
    is_filled = name.endswith("_like") or name.startswith("aten::new_")  # of a shape, not a value
    given = () if is_filled else _tensors((args, kwargs))
    read = (one for one in given if id(one) not in unread_ids)
    made = (one for one in _tensors(result) if id(one) not in changed_ids)
    return sum(map(_moved, (*read, *changed, *made)))


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    shapes = query.shape, key.shape, value.shape
    return int(sdpa_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> int:
    shapes = grad.shape, query.shape, key.shape, value.shape
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


_OWN: dict[str, Callable[..., int]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
"""The formulas of operations that torch has none for."""


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _moved(tensor: Tensor) -> int:
    """Return the bytes of the memory that a tensor lies in: of an expanded one, less than its
    elements have."""
    size = tensor.numel() * tensor.element_size()
    return (
        size if tensor.layout is not torch.strided else min(size, tensor.untyped_storage().nbytes())
    )
