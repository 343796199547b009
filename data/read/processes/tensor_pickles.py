"""Pickling of torch tensors as buffers. torch is used only if it is imported already."""

import copyreg
import sys
from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any


def reductions() -> dict[type, Callable[[Any], Any]]:
    """Return the entries of a pickler's `dispatch_table` for tensors."""
    table: dict[type, Callable[[Any], Any]] = dict(copyreg.dispatch_table)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):  # another thread may be importing it
        table[torch.Tensor] = _reduced
    return table


def _reduced(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    is_plain = (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.numel() > 0
    )
    if not is_plain:
        return tensor.__reduce_ex__(5)
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    name = str(tensor.dtype).removeprefix("torch.")
    return _restored, (PickleBuffer(content), name, tuple(tensor.shape))


def _restored(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=getattr(torch, dtype)).reshape(shape)
