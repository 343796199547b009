"""A process that indexes shards: `python -m data.index.index_worker`.

It reads lines of JSON, {"shard", "hash", "tokens", "index_folder"}, and writes one answer for each,
{"row": [...]} or {"error": [path, offset, problem], "is_broken": whether it is a `BrokenTarError`}.
It ends when its input ends, so it does not
outlive its parent. A process is used because parsing headers holds the interpreter's lock; it is
not of `multiprocessing`, which would import the user's main module again.
"""

import json
import sys
from pathlib import Path
from typing import Any

from data.errors import BrokenTarError, DataError, ShardError
from data.index.manifest_rows import row_of
from data.index.shard.shard_scan import shard_index


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Index one shard, store its sidecar, and return the answer with its row for the manifest."""
    folder = asked["index_folder"]
    try:
        index = shard_index(
            asked["shard"],
            hash=asked["hash"],
            tokens=asked["tokens"],
            index_folder=None if folder is None else Path(folder),
        )
    except ShardError as error:
        is_broken = isinstance(error, BrokenTarError)
        return {"error": [str(error.path), error.offset, error.problem], "is_broken": is_broken}
    except (DataError, OSError) as error:
        return {"error": [asked["shard"], 0, str(error)], "is_broken": False}
    return {"row": list(row_of(asked["shard"], index))}


if __name__ == "__main__":
    main()
