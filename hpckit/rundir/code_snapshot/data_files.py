"""Recognises files of data by their names: weights, arrays, shards, media, logs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import PurePath

DATASET_MANIFEST = "dataset.index"
SIDECAR = ".index"
"""Names that `data.index` gives to the files of an index; importing it would import numpy."""

MAX_DATA_BYTES = 1 << 20
"""Larger files of these kinds are left out, unless git tracks them."""

_WEIGHTS_AND_ARRAYS = {
    *(".pt", ".pth", ".ckpt", ".safetensors", ".gguf", ".onnx", ".bin", ".distcp", ".pkl"),
    *(".npy", ".npz", ".h5", ".hdf5", ".msgpack", ".parquet", ".arrow", ".feather"),
    *(".tar", ".mds", ".tfrecord", ".lmdb", ".mdb", ".db", ".sqlite", ".dat", ".raw"),
    *(".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".tgz"),
}
_MEDIA_AND_LOGS = {
    *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".pdf"),
    *(".mp4", ".avi", ".mov", ".mkv", ".webm", ".wav", ".mp3", ".flac", ".ogg"),
    *(".log", ".out", ".err", ".pyc", ".pyo"),
}


def is_data(name: str) -> bool:
    """Returns whether a file is one of weights, arrays or archives, by its suffix."""
    return PurePath(name).suffix.lower() in _WEIGHTS_AND_ARRAYS


def is_data_or_media(name: str) -> bool:
    """Returns whether a file is of data, or media or a log, none of which is code."""
    suffix = PurePath(name).suffix.lower()
    return suffix in _WEIGHTS_AND_ARRAYS or suffix in _MEDIA_AND_LOGS


def is_bytecode(name: str) -> bool:
    return name.endswith((".pyc", ".pyo"))


def is_tensorboard(name: str) -> bool:
    return name.startswith("events.out.tfevents.")


def is_shard(name: str, names: AbstractSet[str]) -> bool:
    """Returns whether a file is a shard of an indexed dataset, or an index.

    Args:
        names: of all files in its folder.
    """
    if name.endswith(SIDECAR):
        return name == DATASET_MANIFEST or name.removesuffix(SIDECAR) in names
    return name.endswith(".tar") and (DATASET_MANIFEST in names or f"{name}{SIDECAR}" in names)
