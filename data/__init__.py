"""The WebDataset pipeline: pack files into shards, index them, and read them in a resumable order.

    pack_folder(Path("texts"), Path("shards"))
    loader = Loader(open_dataset("shards"), global_batch=256, rank=rank, world_size=world)
    for batch in loader: ...

Usable without torch and the rest of hpckit; only S3 and `CachePeers` need parts of it,
`checkpointing.storage`, `checkpointing.authenticated_channel` and `checkpointing.channel_listener`.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from data.errors import (
    DamagedShardError,
    DataError,
    FetchError,
    FingerprintError,
    IndexFileError,
    IndexingError,
    ObjectChangedError,
    ReaderProcessError,
    SampleError,
    ShardError,
)

if TYPE_CHECKING:
    from data.cache.node_store import NodeStore, NodeStoreOptions
    from data.cache.peers.cache_peers import CachePeers
    from data.index.index_build import build_index
    from data.index.manifest import Manifest, open_manifest
    from data.index.token_files.token_file_options import TokenFiles
    from data.order.batch_ramp import BatchRamp
    from data.order.sample_order import ORDER, Order
    from data.read.batch import Batch, SampleContext
    from data.read.dataset import Dataset, open_dataset
    from data.read.dataset_growth import DatasetGrowth
    from data.read.device_transfer import to_device
    from data.read.loader import Loader
    from data.read.loader_metrics import Usage
    from data.read.loader_options import LoaderOptions
    from data.read.mixture_progress import MixtureChange, SourceProgress
    from data.read.sample_stream import in_order, mixed
    from data.read.sequences.packed_batches import Packing
    from data.read.sequences.packed_sequences import PackedSequence, Sequences
    from data.read.shards.local_file_samples import Sample
    from data.source.sources import Sources
    from data.wds.dataset import StreamingDataset
    from data.wds.loader import WebLoader
    from data.wds.pipeline_conversion import from_wds
    from data.wds.stages.stage_kinds import per_sample
    from data.wds.streaming_options import StreamingOptions
    from data.write.folder_pack import pack_folder
    from data.write.pack_report import PackedShard, PackReport, Vocabulary, vocabulary_of
    from data.write.shard_writer import ShardWriter
    from data.write.stdlib_corpus import python_stdlib
    from data.write.token_pack import pack_token_files
    from data.write.tokeniser import Tokeniser

__all__ = [
    "ORDER",
    "Batch",
    "BatchRamp",
    "CachePeers",
    "DamagedShardError",
    "DataError",
    "Dataset",
    "DatasetGrowth",
    "FetchError",
    "FingerprintError",
    "IndexFileError",
    "IndexingError",
    "Loader",
    "LoaderOptions",
    "Manifest",
    "MixtureChange",
    "NodeStore",
    "NodeStoreOptions",
    "ObjectChangedError",
    "Order",
    "PackReport",
    "PackedSequence",
    "PackedShard",
    "Packing",
    "ReaderProcessError",
    "Sample",
    "SampleContext",
    "SampleError",
    "Sequences",
    "ShardError",
    "ShardWriter",
    "SourceProgress",
    "Sources",
    "StreamingDataset",
    "StreamingOptions",
    "TokenFiles",
    "Tokeniser",
    "Usage",
    "Vocabulary",
    "WebLoader",
    "build_index",
    "from_wds",
    "in_order",
    "mixed",
    "open_dataset",
    "open_manifest",
    "pack_folder",
    "pack_token_files",
    "per_sample",
    "python_stdlib",
    "to_device",
    "vocabulary_of",
]

_MODULES = {
    "cache.node_store": ("NodeStore", "NodeStoreOptions"),
    "cache.peers.cache_peers": ("CachePeers",),
    "index.index_build": ("build_index",),
    "index.manifest": ("Manifest", "open_manifest"),
    "index.token_files.token_file_options": ("TokenFiles",),
    "order.batch_ramp": ("BatchRamp",),
    "order.sample_order": ("ORDER", "Order"),
    "read.batch": ("Batch", "SampleContext"),
    "read.dataset": ("Dataset", "open_dataset"),
    "read.dataset_growth": ("DatasetGrowth",),
    "read.device_transfer": ("to_device",),
    "read.shards.local_file_samples": ("Sample",),
    "read.loader": ("Loader",),
    "read.loader_metrics": ("Usage",),
    "read.loader_options": ("LoaderOptions",),
    "read.mixture_progress": ("MixtureChange", "SourceProgress"),
    "read.sequences.packed_batches": ("Packing",),
    "read.sequences.packed_sequences": ("PackedSequence", "Sequences"),
    "read.sample_stream": ("in_order", "mixed"),
    "source.sources": ("Sources",),
    "write.stdlib_corpus": ("python_stdlib",),
    "wds.pipeline_conversion": ("from_wds",),
    "wds.dataset": ("StreamingDataset",),
    "wds.stages.stage_kinds": ("per_sample",),
    "wds.streaming_options": ("StreamingOptions",),
    "wds.loader": ("WebLoader",),
    "write.folder_pack": ("pack_folder",),
    "write.pack_report": ("PackReport", "PackedShard", "Vocabulary", "vocabulary_of"),
    "write.token_pack": ("pack_token_files",),
    "write.tokeniser": ("Tokeniser",),
    "write.shard_writer": ("ShardWriter",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import exported names on first use, so that a command that only validates its input does not
    wait for numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'data' has no attribute {name!r}")
    try:
        home = import_module(f"data.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("torch", "webdataset"):
            raise
        raise ModuleNotFoundError(
            f"data.{name} needs {missing}, which is not installed in {sys.prefix}: "
            f"pip install {missing}",
            name=missing,
        ) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    """List the names for users, also those that were not used yet, for `help` and completion; those
    that need webdataset only if it is installed."""
    from importlib.util import find_spec

    has_webdataset = find_spec("webdataset") is not None
    return sorted(
        name for name in __all__ if has_webdataset or not _HOMES.get(name, "").startswith("wds.")
    )
