"""The WebDataset pipeline: pack files into shards, index them, and read them in a resumable order.

    pack_folder(Path("texts"), Path("shards"))
    loader = Loader(open_dataset("shards"), global_batch=256, rank=rank, world_size=world)
    for batch in loader: ...

Usable alone: needs neither torch nor the rest of hpckit.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from data.errors import DataError, FingerprintError, SampleError, ShardError

if TYPE_CHECKING:
    from data.batch import Batch, SampleContext
    from data.dataset import Dataset, Sample, open_dataset
    from data.index import Member, SampleEntry, ShardIndex, index_shard
    from data.loader import Loader
    from data.order import ORDER, sample_at
    from data.pack import pack_folder
    from data.placement import share
    from data.report import PackedShard, PackReport
    from data.sidecar import load_or_build
    from data.stdlib import python_stdlib

__all__ = [
    "ORDER",
    "Batch",
    "DataError",
    "Dataset",
    "FingerprintError",
    "Loader",
    "Member",
    "PackReport",
    "PackedShard",
    "Sample",
    "SampleContext",
    "SampleEntry",
    "SampleError",
    "ShardError",
    "ShardIndex",
    "index_shard",
    "load_or_build",
    "open_dataset",
    "pack_folder",
    "python_stdlib",
    "sample_at",
    "share",
]

_MODULES = {
    "batch": ("Batch", "SampleContext"),
    "dataset": ("Dataset", "Sample", "open_dataset"),
    "index": ("Member", "SampleEntry", "ShardIndex", "index_shard"),
    "loader": ("Loader",),
    "order": ("ORDER", "sample_at"),
    "pack": ("pack_folder",),
    "placement": ("share",),
    "report": ("PackedShard", "PackReport"),
    "sidecar": ("load_or_build",),
    "stdlib": ("python_stdlib",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import on first use: a command line that may only refuse is not to wait for numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'data' has no attribute {name!r}")
    return getattr(import_module(f"data.{_HOMES[name]}"), name)
