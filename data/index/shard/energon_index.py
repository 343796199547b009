"""Import of what Megatron-Energon knows of a dataset that it prepared (`energon prepare`).

`<folder>/.nv-meta/.info.json` (or `.info.yaml`) has {"shard_counts": {path in the folder: number of
samples}}, in the dataset's order. `<shard>.tar.idx` has, as little-endian u64, the offset of each
sample's first header and then the end of the last sample.

Only the list of the shards is used. The headers of the shards are read, which costs no more than
reading that index, and differences are reported.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import DataError
from data.index.shard.shard_index import ShardIndex

FOLDER = ".nv-meta"


def list_shards(folder: Path) -> list[Path] | None:
    """Return the shards that Energon lists for a folder, absolute, in order; None if it lists none.

    Raises DataError for a list that cannot be read.
    """
    counts = shard_counts(folder)
    return None if counts is None else [(folder / name).absolute() for name in counts]


def shard_counts(folder: Path) -> dict[str, int] | None:
    """Return Energon's number of samples of each shard; None if it did not prepare the folder."""
    for name, parse in ((".info.json", _json), (".info.yaml", _yaml)):
        path = folder / FOLDER / name
        if path.is_file():
            try:
                return _counts(parse(path.read_bytes()))
            except (OSError, ValueError, RecursionError) as error:
                raise DataError(
                    f"{path} cannot be read: {error}; remove it or repair it"
                ) from error
    return None


def difference(index: ShardIndex, content: bytes) -> str | None:
    """Return how the content of a `.tar.idx` differs from a shard's own index, None if it does
    not."""
    if len(content) % 8 or not content:
        return "is not a list of offsets"
    offsets = np.frombuffer(content, "<u8")
    begins = index.columns["begin"].astype(np.uint64)
    if len(offsets) - 1 != len(begins):
        return f"lists {len(offsets) - 1} samples, but there are {len(begins)}"
    wrong = np.flatnonzero(offsets[:-1] != begins)
    return f"sample {int(wrong[0])} moved" if len(wrong) else None


def _json(content: bytes) -> Any:
    return json.loads(content)


def _yaml(content: bytes) -> Any:
    try:
        import yaml  # imported here, as it is rarely needed
    except ImportError as error:
        raise DataError(
            "the index of a dataset of Megatron Energon is YAML: pip install PyYAML"
        ) from error
    try:
        return yaml.safe_load(content)
    # the last two are raised for odd scalars
    except (yaml.YAMLError, LookupError, AttributeError) as error:
        raise ValueError(str(error)) from error


def _counts(info: Any) -> dict[str, int]:
    counts = info.get("shard_counts") if isinstance(info, dict) else None
    if not isinstance(counts, dict) or not counts:
        raise ValueError("no shard_counts")
    return {str(name): int(count) for name, count in counts.items()}
