"""The WebDataset pipeline: pack files into shards, index them, and read them in a resumable order.

    pack_folder(Path("texts"), Path("shards"))
    loader = Loader(open_dataset("shards"), global_batch=256, rank=rank, world_size=world)
    for batch in loader: ...

Usable alone: needs neither torch nor the rest of hpckit.
"""

from data.batch import Batch, SampleContext
from data.dataset import Dataset, Sample, open_dataset
from data.errors import DataError, FingerprintError, SampleError, ShardError
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
