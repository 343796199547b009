"""Verification of the shards of a dataset against its manifest and their indexes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.errors import DataError, ShardError
from data.index import shard_access
from data.index.in_place_manifest import InPlaceManifest
from data.index.manifest import Manifest, open_manifest
from data.index.shard import sidecar
from data.index.shard.shard_index import ShardIndex
from data.index.shard.shard_scan import scan_shard
from data.index.shard_patterns import tars_of
from data.index.shard_sizes import other_size
from data.source.protocol import ObjectSource

WORKERS = 4  # threads: hashing and reading run in parallel, parsing headers does not

_PLACES = ("begin", "first", "offset", "size", "extension", "header")


@dataclass(frozen=True)
class ShardVerification:
    """The result of verifying one shard; `problem` is None if it is right.

    `hashed`: all its bytes were compared with their hash, not only its headers, or of a token file
    its documents.
    """

    url: str
    samples: int
    bytes: int
    hashed: bool
    problem: str | None


def verify(
    dataset: str | Path | Manifest,
    *,
    full: bool = False,
    source: ObjectSource | None = None,
    index_folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[ShardVerification]:
    """Verify all shards: read all headers again, or with `full` all bytes, and compare.

    `progress(done, total)` is called with numbers of shards. Raises IndexFileError if the manifest
    itself cannot be read.
    """
    manifest = dataset if isinstance(dataset, Manifest) else open_manifest(dataset, source=source)

    def look(i: int) -> ShardVerification:
        hashed = full and not isinstance(manifest, InPlaceManifest) and manifest.hash(i) is not None
        try:
            if isinstance(manifest, InPlaceManifest):
                problem = manifest.problem(i, full)
            else:
                problem = _problem(manifest, i, hashed, source, index_folder)
        except ShardError as error:
            problem = f"offset {error.offset}: {error.problem}"
        except DataError as error:
            problem = str(error)
        row = manifest.row(i)
        return ShardVerification(row.url, row.samples, row.bytes, hashed, problem)

    verdicts: list[ShardVerification] = []
    with ThreadPoolExecutor(WORKERS) as threads:
        for verdict in threads.map(look, range(len(manifest))):
            verdicts.append(verdict)
            if progress:
                progress(len(verdicts), len(manifest))
    return verdicts


def unlisted_tars(folder: Path, manifest: Manifest) -> list[str]:
    """Return the names of the tars of a folder that its manifest does not list, which may have been
    forgotten; none if it is no folder."""
    if not folder.is_dir():
        return []
    there = [str(path) for path in tars_of(folder.absolute())]
    return [Path(path).name for path in manifest.urls.without(there)]


def difference(old: ShardIndex, new: ShardIndex) -> str | None:
    """Return the first difference between the samples of two indexes; None if there is none."""
    for i in range(min(len(old), len(new))):
        if old.key(i) != new.key(i):
            return f"sample {i} is {new.key(i)!r}, but was {old.key(i)!r}"
        was, now = (_sizes(index, i) for index in (old, new))
        if was != now:
            return f"sample {i} ({new.key(i)!r}) has {now}, but had {was}"
    return None if len(old) == len(new) else f"has {len(new)} samples, but had {len(old)}"


def _sizes(index: ShardIndex, i: int) -> str:
    return ", ".join(f"{m.extension} of {m.size} bytes" for m in index.members(i))


def _problem(
    manifest: Manifest, i: int, hashed: bool, source: ObjectSource | None, folder: Path | None
) -> str | None:
    url, stated = manifest.urls[i], int(manifest.bytes[i])
    size, tag = shard_access.stat(url, source)
    if size != stated:
        return other_size(size, stated)
    now = scan_shard(url, hash=hashed, source=source)
    kept = sidecar.load(Path(sidecar.beside(url))) if not shard_access.is_url(url) else None
    kept = kept or sidecar.find(url, size, tag, folder)
    if now.digest != manifest.digest(i):
        what = difference(kept, now) if kept and kept.digest == manifest.digest(i) else None
        return f"has other samples than when it was indexed ({what or 'keys or sizes'})"
    if hashed and now.hash != manifest.hash(i):
        return "its bytes have changed since it was indexed (BLAKE3 differs)"
    if kept and not all(np.array_equal(kept.columns[c], now.columns[c]) for c in _PLACES):
        return f"its index does not fit it: index it again ({_first(kept, now)})"
    return None


def _first(kept: ShardIndex, now: ShardIndex) -> str:
    same = len(kept) == len(now)
    wrong = [i for i in range(len(now)) if same and kept.members(i) != now.members(i)]
    return f"sample {wrong[0]} moved" if wrong else "the number of samples differs"
