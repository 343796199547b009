"""Token files as other programs write them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Documents = Sequence[Sequence[int]]

CODES = {"uint8": 1, "int32": 4, "int64": 5, "uint16": 8}


def write_flat(path: Path, documents: Documents, dtype: str = "uint16") -> Path:
    """As nanoGPT's prepare.py writes it."""
    np.concatenate([np.array(one, dtype) for one in documents]).tofile(path)
    return path


def write_megatron(
    prefix: Path,
    documents: Documents,
    dtype: str = "uint16",
    *,
    sentences: int = 1,
    modes: bool = False,
) -> Path:
    """As Megatron's IndexedDatasetBuilder writes it, each document in some sequences."""
    parts = [np.array_split(np.array(one, dtype), sentences) for one in documents]
    lengths = np.array([len(part) for one in parts for part in one], np.int32)
    item = np.dtype(dtype).itemsize
    pointers = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * item
    borders = np.arange(len(documents) + 1, dtype=np.int64) * sentences
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, CODES[dtype], len(lengths), len(borders))
    index = head + lengths.tobytes() + pointers.astype(np.int64).tobytes() + borders.tobytes()
    prefix.with_name(f"{prefix.name}.idx").write_bytes(index + bytes(len(lengths) * modes))
    tokens = prefix.with_name(f"{prefix.name}.bin")
    np.concatenate([part for one in parts for part in one]).tofile(tokens)
    return tokens


def write_arrow(
    path: Path, documents: Documents, kind: Any = None, *, is_file: bool = False, **options: Any
) -> Path:
    """One Arrow file with the columns `text` and `input_ids`, in batches of three rows."""
    import pyarrow as pa

    kind = pa.list_(pa.int32()) if kind is None else kind
    rows = pa.array([list(one) for one in documents], kind)
    table = pa.table({"text": pa.array(["x"] * len(documents)), "input_ids": rows})
    make = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with make(str(path), table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=3)
    return path


def write_saved_dataset(folder: Path, documents: Documents, files: int = 2) -> Path:
    """As `Dataset.save_to_disk` writes it."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05d}-of-{files:05d}.arrow" for n in range(files)]
    for name, number in zip(names, range(files), strict=True):
        cut = [len(documents) * n // files for n in (number, number + 1)]
        write_arrow(folder / name, documents[cut[0] : cut[1]])
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1a2b"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder
