"""Shards that webdataset wrote, with members of several kinds, for tests of `data.wds`."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from PIL import Image

KEYS = 47


def write_shards(folder: Path, count: int = KEYS, per_shard: int = 9) -> list[str]:
    """Samples k000 … with jpg, cls, json, npy, txt, pyd and a member of two extensions."""
    folder.mkdir(parents=True, exist_ok=True)
    pattern = str(folder / "s-%03d.tar")
    with webdataset.ShardWriter(pattern, maxcount=per_shard, verbose=0) as writer:
        for i in range(count):
            writer.write(sample(i))
    return sorted(str(path) for path in folder.glob("*.tar"))


def sample(i: int) -> dict[str, Any]:
    jpg = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), i, np.uint8)).save(jpg, "JPEG")
    npy = io.BytesIO()
    np.save(npy, np.full(3, i))
    return {
        "__key__": f"k{i:03d}",
        "jpg": jpg.getvalue(),
        "cls": str(i).encode(),
        "json": json.dumps({"number": i}).encode(),
        "npy": npy.getvalue(),
        "txt": f"text of {i}".encode(),
        "pyd": pickle.dumps((i, "pickled")),
        "seg.txt": b"segmented",
    }


def keys_of(batches: Any) -> list[str]:
    """Of batches that are tuples with the keys first."""
    return [key for batch in batches for key in batch[0]]
