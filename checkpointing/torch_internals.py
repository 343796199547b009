"""The private parts of torch that this package uses, and nothing else of it. Requires torch.

No other file of the package names one of them. `INTERNALS` says what fails once torch has one no
more; a test looks for each of them in the installed torch. Seen in torch 2.7 to 2.15, unless a line
says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase as BatchNormBase

from checkpointing.distributed_classes import is_dtensor

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed import Store  # type: ignore[attr-defined]
    from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor.placement_types import _StridedShard as StridedShard

OLDEST = (2, 7)
"""The oldest torch with which the tests are run (docs/versions.md)."""


def version_problem(text: str) -> str | None:
    """Returns why a version of torch is refused, or None. A custom build that has no version is
    not. Pure."""
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) >= OLDEST:
        return None
    return f"torch {text} is installed, and checkpointing needs {OLDEST[0]}.{OLDEST[1]} or newer"


if problem := version_problem(torch.__version__):
    raise ImportError(problem, name="torch")

__all__ = ["BatchNormBase", "FakeTensorMode", "StorageInfo", "StridedShard"]

INTERNALS = {
    "torch._foreach_copy_": "Tensors are copied one by one, which costs a call from Python each.",
    "torch._subclasses.fake_tensor.FakeTensorMode": "Files of torch.save cannot be written.",
    "torch.Tensor._version": "A write to a tensor during an overlapped copy is not detected: saves "
    "must use staging without overlap.",
    "torch.distributed.checkpoint.filesystem._StorageInfo": "No folder of DCP can be exported.",
    "torch.distributed.checkpoint.filesystem.CURRENT_DCP_VERSION": "Exported folders of DCP "
    "have no version. It is needed where Metadata has the field, since 2.9.",
    "torch.distributed.checkpoint.state_dict_saver._save_state_dict": "A save by DCP that "
    "failed on another rank is only found by its timeout.",
    "torch.distributed.distributed_c10d._get_default_store": "No Checkpointer can be made on "
    "several ranks, which meet in that store.",
    "torch.distributed.tensor._dtensor_spec.DTensorSpec": "No DTensor can be saved.",
    "torch.distributed.tensor.DTensor._spec": "No DTensor can be saved.",
    "torch.distributed.tensor.DTensor._local_tensor": "No DTensor can be saved. to_local() returns "
    "another tensor, with its own version counter.",
    "torch.distributed.tensor.placement_types._StridedShard": "FSDP with tensor parallelism cannot "
    "be saved.",
    "torch.nn.modules.batchnorm._NormBase": "Buffers of BatchNorm are compared among ranks, which "
    "DDP lets differ.",
    "torch.nn.Module._buffers": "Buffers that are None are not known.",
}
"""What fails without each of them. Public functions for these do not exist."""

SINCE = {"torch.distributed.checkpoint.filesystem.CURRENT_DCP_VERSION": (2, 9)}
"""The first version that has a name, of those that the oldest one does not have."""

DCP_SAVE = ("torch.distributed.checkpoint.state_dict_saver", "_save_state_dict")
"""Module and name of the function in which DCP saves, by which a frame is recognised."""

_LATER = {
    "FakeTensorMode": ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    "StorageInfo": ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    "StridedShard": ("torch.distributed.tensor.placement_types", "_StridedShard"),
}
"""Module and name of each class that is imported on first use, because its module takes long to
import."""


def __getattr__(name: str) -> Any:
    """Imports a class on first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LATER[name]
    return getattr(import_module(module), attribute)


@cache
def is_shard_order_known() -> bool:
    """Return whether torch has `use_strided_shard_as_shard_order` (since 2.11), with which a
    StridedShard that encodes no order of shards cuts as it does here."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    return any(field.name == "use_strided_shard_as_shard_order" for field in fields(DTensorSpec))


def foreach_copy(
    targets: Sequence[Tensor], sources: Sequence[Tensor], *, non_blocking: bool = False
) -> None:
    """Copy many tensors by one call."""
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(list(targets), list(sources), non_blocking=non_blocking)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=non_blocking)


_VERSION = attrgetter("_version")


def versions_of(tensors: Iterable[Tensor]) -> list[int]:
    """Return the version counter of each tensor, by which torch counts in-place changes."""
    return list(map(_VERSION, tensors))


def default_store(prefix: str) -> Store:
    """Return the store in which the ranks of the default process group have met, with a prefix of
    all keys."""
    from torch.distributed import distributed_c10d

    return distributed_c10d.PrefixStore(prefix, distributed_c10d._get_default_store())


def held_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor that a rank holds of a DTensor, itself and no view; others as they are."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor


def spec_of(tensor: DTensor) -> DTensorSpec:
    """Return the mesh, placements and order of shards of a DTensor."""
    return tensor._spec


def dtensor_like(tensor: DTensor, held: Tensor) -> DTensor:
    """Return a DTensor with the spec of `tensor` that holds `held`, which stays on its device:
    from_local() would move it to that of the mesh."""
    from torch.distributed.tensor import DTensor

    return DTensor(held, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def names_of_buffers(module: nn.Module) -> list[str]:
    """Return the names of a module's own buffers, those that are None included."""
    return list(module._buffers)


def dcp_version() -> dict[str, str]:
    """Return the version of DCP's format as an argument of Metadata, which torch before 2.9 does
    not have."""
    from torch.distributed.checkpoint import filesystem
    from torch.distributed.checkpoint.metadata import Metadata

    has_version = any(field.name == "version" for field in fields(Metadata))
    return {"version": filesystem.CURRENT_DCP_VERSION} if has_version else {}
