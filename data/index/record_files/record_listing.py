"""From what a user gives as the shards of a dataset to the files of records among them."""

import json
from pathlib import Path
from typing import Any

from data.errors import DataError, NoShardsError
from data.index import shard_access
from data.index.compressed.compressed_files import Unpack
from data.index.record_files.jsonl_files import SUFFIXES, open_jsonl
from data.index.record_files.litdata_files import is_litdata, open_litdata, row_chunks
from data.index.record_files.mds_files import is_mds, open_mds
from data.index.record_files.record_file import RecordFile
from data.index.record_files.record_manifest import RecordManifest
from data.index.shard_listing import Shards, files_of_items, is_folder_of_tars, items_of
from data.index.shard_patterns import entries_of, find_files, refuse_twice

INDEX = "index.json"
_OTHERS = (".parquet", ".arrow", ".bin")
_MOST_INDEX = 1 << 30  # bytes


def open_record_files(shards: Shards, unpack: Unpack) -> RecordManifest | None:
    """Open files of records; None if `shards` are none.

    An item is a folder with the `index.json` of MDS or LitData, or that file; a file of lines of
    JSON (`.jsonl`, `.ndjson`), a folder of them, or a glob or `{0..9}` range. Raises DataError for
    what cannot be read so, and if only some items are files of records.
    """
    items = items_of(shards)
    records = files_of_items(items, lambda item: _files(item, unpack), "a file of records")
    if records is None:
        return None
    refuse_twice((one.file.path for one in records), "records")
    if not sum(one.count for one in records):
        raise NoShardsError(f"no records: looked for them in {', '.join(items)}")
    return RecordManifest(records, ", ".join(items))


def _files(item: str, unpack: Unpack) -> list[RecordFile] | None:
    if shard_access.is_url(item):
        instead = "copy them, or `hpckit data pack` them to tars, which are read from any URL"
        shard_access.refuse_at_url(item, (*SUFFIXES, INDEX), "files of records", instead)
        return None
    path = Path(item).expanduser().absolute()
    if path.is_dir():
        return _files_of_folder(path, unpack)
    if path.name == INDEX and path.is_file():
        return _of_index(path, unpack)
    if path.suffix not in SUFFIXES:
        return None
    return [open_jsonl(one) for one in find_files(path, "files of lines")]


def _files_of_folder(folder: Path, unpack: Unpack) -> list[RecordFile] | None:
    if is_folder_of_tars(folder):
        return None
    if (folder / INDEX).is_file():
        return _of_index(folder / INDEX, unpack)
    entries = entries_of(folder)
    lines = [one for one in entries if one.suffix in SUFFIXES]
    others = [one.name for one in entries if one.suffix in _OTHERS]
    if lines and others:
        raise DataError(
            f"{folder} has files of several formats, such as {others[0]} and {lines[0].name}: give "
            "those of one, as a glob"
        )
    return [open_jsonl(path) for path in lines] if lines else None


def _of_index(place: Path, unpack: Unpack) -> list[RecordFile] | None:
    """Return the files that an `index.json` lists; None if it is of another format, or lists
    tables."""
    index = load_index(place)
    if is_litdata(index):
        return None if row_chunks(place, index) else open_litdata(place, index, unpack)
    return open_mds(place, index, unpack) if is_mds(index) else None


def load_index(place: Path) -> Any:
    """Return the content of an `index.json`. Raises DataError."""
    try:
        if place.stat().st_size > _MOST_INDEX:
            raise DataError(f"{place}: has more than {_MOST_INDEX} bytes, which an index never has")
        index: Any = json.loads(place.read_bytes())
    except OSError as error:
        raise DataError(f"{place}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: is not JSON: {error}; copy it again") from error
    return index
