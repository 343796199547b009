"""Indexing a whole dataset: in parallel, continued after an interruption, with all errors reported
together."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from data.errors import BrokenTarError, DataError, IndexFileError, IndexingError
from data.index import shard_access
from data.index.index_pool import IndexJob, index_all
from data.index.manifest import NAME, Manifest, make_manifest, open_manifest, save_manifest
from data.index.manifest_rows import ShardRow
from data.index.shard import sample_token_counts, sidecar
from data.index.shard.sample_token_counts import Tokens
from data.index.shard_listing import Shards, checked_shards, list_shards
from data.index.token_files.token_file_listing import first_token_file
from data.source.protocol import ObjectSource

_log = logging.getLogger(__name__)


def build_index(
    shards: Shards,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    hash: bool = False,
    tokens: Tokens | None = None,
    source: ObjectSource | None = None,
    index_folder: Path | None = None,
) -> Manifest:
    """Index all shards, each with its sidecar, and write the manifest `out`.

    `shards` as in `list_shards`; `out` is a file or a folder, by default `dataset.index` in the
    folder of the shards. `hash` reads every shard whole for its BLAKE3 and the checksums of its
    members' content, which `check="content"` of `open_dataset` needs. `tokens` says how to count
    tokens (see `data.index.shard.sample_token_counts`). `source` reads URLs. `progress(done,
    total)` is called with numbers of shards. `workers` is the number of processes (threads for
    URLs, and if `tokens` is a function).

    Shards that were indexed before and have not changed are not read again, even after the process
    was killed. Raises IndexingError with all shards that are broken, after the others are done;
    DataError if there are no shards, or no place for the manifest.
    """
    shards = checked_shards(shards)
    if (item := first_token_file(shards)) is not None:
        raise DataError(f"{item} is a token file, which needs no index: open it as it is")
    found = list_shards(shards)
    place = _manifest_path(out, found)
    job = _job(hash, tokens, source, index_folder)
    return _save(_rows(found, _open_old(place), job, workers, progress), place, job)


def read_index(
    shards: Shards,
    *,
    workers: int | None = None,
    source: ObjectSource | None = None,
    index_folder: Path | None = None,
    skip_broken: bool = False,
    repeated: bool = False,
) -> Manifest:
    """Index all shards as `build_index` does, sidecars included, without storing the manifest:
    every shard is checked again each time.

    With `repeated`, a shard that is given several times is that many shards of the dataset.

    With `skip_broken`, shards whose bytes are not a tar of samples are left out with a warning.
    Those that cannot be read now are an error all the same, as they may be readable elsewhere:
    another rank, or the run after a restart, would have another dataset.
    """
    job = _job(False, None, source, index_folder)
    listed = list_shards(shards, repeated=repeated)
    found = list(dict.fromkeys(listed))
    known, errors = _index_each(found, None, job, workers, None)
    if errors:
        may_skip = skip_broken and all(isinstance(e, BrokenTarError) for e in errors.values())
        if not (may_skip and known):
            raise IndexingError([errors[i] for i in sorted(errors)], len(found))
        for i in sorted(errors):
            _log.warning("a broken shard is left out, with all of its samples: %s", errors[i])
    rows = {found[i]: row for i, row in known.items()}
    return make_manifest(rows[shard] for shard in listed if shard in rows)


def _rows(
    found: Sequence[str],
    old: Manifest | None,
    job: IndexJob,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> list[ShardRow]:
    """Return a row for each shard, as `_index_each`. Raises IndexingError."""
    known, errors = _index_each(found, old, job, workers, progress)
    if errors:
        raise IndexingError([errors[i] for i in sorted(errors)], len(found))
    return [known[i] for i in range(len(found))]


def _index_each(
    found: Sequence[str],
    old: Manifest | None,
    job: IndexJob,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[int, ShardRow], dict[int, DataError]]:
    """Return the rows and the errors of the shards, by their numbers; rows of the `old` manifest
    that are still valid are reused."""
    sidecar.remove_debris(
        {str(Path(shard).parent) for shard in found if not shard_access.is_url(shard)}
    )
    known, rest_bytes = _valid_rows(found, old, job)
    missing = [i for i in range(len(found)) if i not in known]
    errors: dict[int, DataError] = {}
    report = progress or _silent
    report(len(known), len(found))
    for number, answer in index_all([found[i] for i in missing], job, workers, rest_bytes):
        if isinstance(answer, DataError):
            errors[missing[number]] = answer
        else:
            known[missing[number]] = answer
        report(len(known) + len(errors), len(found))
    return known, errors


def _silent(done: int, total: int) -> None:
    pass


def _job(
    hash: bool, way: Tokens | None, source: ObjectSource | None, index_folder: Path | None
) -> IndexJob:
    sample_token_counts.check(way)
    return IndexJob(hash, way, source, index_folder)


def _save(rows: Sequence[ShardRow], place: Path, job: IndexJob) -> Manifest:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        return save_manifest(rows, place, sample_token_counts.name_of(job.tokens))
    except OSError as error:
        problem = f"cannot be written: {error.strerror}; choose another place"
        raise IndexFileError(place, problem) from error


def _manifest_path(out: str | Path | None, shards: Sequence[str]) -> Path:
    """Return the path of the manifest. Raises DataError if it must be given, but is not."""
    if out is not None:
        path = Path(out).expanduser().absolute()
        is_folder = path.is_dir() or str(out).endswith("/")
        return path / NAME if is_folder else path
    if any(shard_access.is_url(shard) for shard in shards):
        raise DataError("the shards have URLs: give the place to write the manifest to")
    return Path(os.path.commonpath([Path(shard).parent for shard in shards])) / NAME


def _valid_rows(
    shards: Sequence[str], old: Manifest | None, job: IndexJob
) -> tuple[dict[int, ShardRow], int]:
    """Return the rows of the `old` manifest that are still valid, and the bytes of all other
    shards.

    A row is valid if its shard has the same size and version and has its sidecar.
    """
    numbers = {url: i for i, url in enumerate(old.urls)} if old is not None else {}
    known: dict[int, ShardRow] = {}
    rest_bytes = 0
    for i, shard in enumerate(shards):
        if old is None and shard_access.is_url(shard):
            continue
        try:
            size, tag = shard_access.stat(shard, job.source)
        except DataError:
            continue  # reported with the other errors, when the shard is indexed
        at = numbers.get(shard)
        if old is None or at is None or not old.is_version(at, size, tag):
            rest_bytes += size
        elif _has_all(old, at, job) and _is_kept(shard, size, tag, job):
            known[i] = old.row(at)._replace(tag=tag)
    return known, rest_bytes


def _is_kept(shard: str, size: int, tag: str | None, job: IndexJob) -> bool:
    """Return whether there is a sidecar with all that is asked for now."""
    if not job.hash:
        return sidecar.is_kept(shard, size, tag, job.index_folder)
    found = sidecar.find(shard, size, tag, job.index_folder)
    return found is not None and found.has_content_sums


def _open_old(place: Path) -> Manifest | None:
    if not place.exists():
        return None
    try:
        return open_manifest(place)
    except IndexFileError as error:
        _log.warning("the existing manifest cannot be used and is rebuilt: %s", error)
        return None


def _has_all(old: Manifest, i: int, job: IndexJob) -> bool:
    """Return whether a row has all that is asked for now."""
    if job.hash and old.hash(i) is None:
        return False
    return job.tokens is None or old.tokens == sample_token_counts.name_of(job.tokens)
