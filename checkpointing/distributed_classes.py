"""Recognises instances of torch's distributed classes without an import of their modules.

The modules take half as long to import as torch itself. An object of such a class exists only once
its module was imported, so a program without one need not wait for it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs

_PLAIN = (Tensor, nn.Parameter)


def is_dtensor(value: object) -> TypeIs[DTensor]:
    """Returns whether `value` is a DTensor."""
    if type(value) in _PLAIN:  # almost all
        return False
    kind = dtensor_class()
    return kind is not None and isinstance(value, kind)


def dtensor_class() -> type[DTensor] | None:
    """Returns the class DTensor, or None if nothing has imported it yet."""
    found: type[DTensor] | None = _imported("torch.distributed.tensor", "DTensor")
    return found


def has_flat_parameters(module: nn.Module) -> bool:
    """Returns whether FullyShardedDataParallel holds parameters of `module` in flat ones."""
    kind = _imported("torch.distributed.fsdp", "FullyShardedDataParallel")
    return kind is not None and any(isinstance(one, kind) for one in module.modules())


def _imported(module: str, name: str) -> Any:
    """Returns what a module has under a name; None if it was not imported, or only in part."""
    return getattr(sys.modules.get(module), name, None)
