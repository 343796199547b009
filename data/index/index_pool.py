"""Indexing many shards in parallel, in threads or in processes that threads drive."""

import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
from data.errors import BrokenTarError, DataError, ShardError
from data.index import shard_access
from data.index.manifest_rows import ShardRow, row_of
from data.index.shard.sample_token_counts import Tokens
from data.index.shard.shard_scan import shard_index
from data.source.protocol import ObjectSource

REMOTE_WORKERS = 16  # threads, which mostly wait
FEW_BYTES = 64 << 20  # per worker: less is indexed before its process has started


@dataclass(frozen=True)
class IndexJob:
    """The settings of indexing: what is indexed of each shard, and where its index is stored."""

    hash: bool
    tokens: Tokens | None
    source: ObjectSource | None
    index_folder: Path | None


def index_all(
    shards: Sequence[str], job: IndexJob, workers: int | None, total_bytes: int
) -> Iterator[tuple[int, ShardRow | DataError]]:
    """Yield (number of the shard, its row or its error), in the order of completion.

    Local shards, of `total_bytes` in all, are indexed in `workers` processes where that is worth it
    and the job can be sent to another process; else in threads.
    """
    is_remote = any(shard_access.is_url(shard) for shard in shards)
    count = min(workers or (REMOTE_WORKERS if is_remote else _cores()), len(shards))
    if count == 0:
        return
    is_small = total_bytes < FEW_BYTES * count and workers is None
    in_threads = is_remote or callable(job.tokens) or count == 1 or is_small
    with _Pool(job, 0 if in_threads else count) as pool, ThreadPoolExecutor(count) as threads:
        futures = {threads.submit(pool.index, shard): i for i, shard in enumerate(shards)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()


class _Pool:
    """A pool of `processes` idle processes, each used by one thread at a time; 0: no processes."""

    def __init__(self, job: IndexJob, processes: int) -> None:
        self._job = job
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] | None = None
        self._all: list[subprocess.Popen[str]] = []
        if processes:
            self._idle = queue.SimpleQueue()
            for _ in range(processes):
                self._idle.put(self._start())

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.communicate()  # its input ends, so it ends

    def index(self, shard: str) -> ShardRow | DataError:
        """Return the row of one shard, or its error."""
        if self._idle is None:
            return self._index_here(shard)
        process = self._idle.get()
        try:
            answer = _index_in_process(process, shard, self._job)
        except (OSError, ValueError) as error:  # the process died: out of memory, or killed
            process.kill()
            code = process.wait()
            self._idle.put(self._start())
            problem = f"the process that indexed it ended ({code}): {error}; index again"
            return ShardError(Path(shard), 0, problem)
        self._idle.put(process)
        return answer

    def _index_here(self, shard: str) -> ShardRow | DataError:
        job = self._job
        try:
            index = shard_index(
                shard,
                hash=job.hash,
                tokens=job.tokens,
                source=job.source,
                index_folder=job.index_folder,
            )
        except DataError as error:
            return error
        return row_of(shard, index)

    def _start(self) -> subprocess.Popen[str]:
        path = [str(Path(data.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "data.index.index_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        )
        self._all.append(process)
        return process


def _index_in_process(
    process: subprocess.Popen[str], shard: str, job: IndexJob
) -> ShardRow | DataError:
    """Have a process index a shard. Raises OSError or ValueError if it does not answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    folder = None if job.index_folder is None else str(job.index_folder)
    asked = {"shard": shard, "hash": job.hash, "tokens": job.tokens, "index_folder": folder}
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    if "error" in answer:
        path, offset, problem = answer["error"]
        kind = BrokenTarError if answer["is_broken"] else ShardError
        return kind(Path(path), offset, problem)
    return ShardRow(*answer["row"])


def _cores() -> int:
    return len(os.sched_getaffinity(0))
