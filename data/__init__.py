"""The WebDataset pipeline: pack files into shards, index them, and read them in a resumable order.

    pack_folder(Path("texts"), Path("shards"))
    loader = Loader(open_dataset("shards"), global_batch=256, rank=rank, world_size=world)
    for batch in loader: ...

Usable alone: needs neither torch nor the rest of hpckit.
"""

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
    from data.cache.store import NodeStore
    from data.indexing.build import build_index
    from data.indexing.manifest import Manifest, open_manifest
    from data.ordering.order import ORDER, Order
    from data.reader.batch import Batch, SampleContext
    from data.reader.dataset import Dataset, open_dataset
    from data.reader.device import to_device
    from data.reader.direct import Sample
    from data.reader.loader import Loader
    from data.reader.metrics import Usage
    from data.reader.packed import Packing
    from data.reader.sequences import PackedSequence, Sequences
    from data.reader.stream import in_order, mixed
    from data.source.sources import Sources
    from data.stdlib import python_stdlib
    from data.wds.convert import from_wds
    from data.wds.dataset import StreamingDataset
    from data.wds.kinds import per_sample
    from data.wds.loader import WebLoader
    from data.writing.pack import pack_folder
    from data.writing.report import PackedShard, PackReport, Vocabulary, vocabulary_of
    from data.writing.tokenising import Tokeniser
    from data.writing.writer import ShardWriter

__all__ = [
    "ORDER",
    "Batch",
    "DamagedShardError",
    "DataError",
    "Dataset",
    "FetchError",
    "FingerprintError",
    "IndexFileError",
    "IndexingError",
    "Loader",
    "Manifest",
    "NodeStore",
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
    "Sources",
    "StreamingDataset",
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
    "per_sample",
    "python_stdlib",
    "to_device",
    "vocabulary_of",
]

_MODULES = {
    "cache.store": ("NodeStore",),
    "indexing.build": ("build_index",),
    "indexing.manifest": ("Manifest", "open_manifest"),
    "ordering.order": ("ORDER", "Order"),
    "reader.batch": ("Batch", "SampleContext"),
    "reader.dataset": ("Dataset", "open_dataset"),
    "reader.device": ("to_device",),
    "reader.direct": ("Sample",),
    "reader.loader": ("Loader",),
    "reader.metrics": ("Usage",),
    "reader.packed": ("Packing",),
    "reader.sequences": ("PackedSequence", "Sequences"),
    "reader.stream": ("in_order", "mixed"),
    "source.sources": ("Sources",),
    "stdlib": ("python_stdlib",),
    "wds.convert": ("from_wds",),
    "wds.dataset": ("StreamingDataset",),
    "wds.kinds": ("per_sample",),
    "wds.loader": ("WebLoader",),
    "writing.pack": ("pack_folder",),
    "writing.report": ("PackReport", "PackedShard", "Vocabulary", "vocabulary_of"),
    "writing.tokenising": ("Tokeniser",),
    "writing.writer": ("ShardWriter",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import on first use: a command line that may only refuse is not to wait for numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'data' has no attribute {name!r}")
    return getattr(import_module(f"data.{_HOMES[name]}"), name)
