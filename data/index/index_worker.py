"""A process that indexes shards: `python -m data.index.index_worker`.

Lines of JSON: {"shard", "hash", "tokens", "index_folder"} come in, and for each one answer goes
out, {"row": [...]} or {"error": [path, offset, problem]}. Ends when its input ends, so it cannot
outlive who started it. A process of its own, because headers are read with Python held; not of
`multiprocessing`, which would import the user's main module again.
"""

import json
import sys
from pathlib import Path
from typing import Any

from data.errors import DataError, ShardError
from data.index.manifest_rows import row_of
from data.index.shard.shard_scan import shard_index


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Index one shard, keep its sidecar, and say what the manifest is to keep of it."""
    folder = asked["index_folder"]
    try:
        index = shard_index(
            asked["shard"],
            hash=asked["hash"],
            tokens=asked["tokens"],
            index_folder=None if folder is None else Path(folder),
        )
    except ShardError as error:
        return {"error": [str(error.path), error.offset, error.problem]}
    except (DataError, OSError) as error:
        return {"error": [asked["shard"], 0, str(error)]}
    return {"row": list(row_of(asked["shard"], index))}


if __name__ == "__main__":
    main()
