"""From what a user gives as the shards of a dataset to the tables among them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from data.errors import DataError, NoShardsError, shown
from data.index import shard_access
from data.index.record_files.litdata_files import is_litdata, row_chunks
from data.index.record_files.record_listing import INDEX, load_index
from data.index.shard_listing import Shards, files_of_items, is_folder_of_tars, items_of
from data.index.shard_patterns import entries_of, find_files, refuse_twice
from data.index.table_files.table_file import (
    TableFile,
    open_arrow,
    open_arrow_rows,
    open_parquet,
)
from data.index.table_files.table_manifest import TableManifest
from data.index.token_files import arrow_files

PARQUET, ARROW = ".parquet", ".arrow"

_Open = Callable[[Path], TableFile]


def open_table_files(shards: Shards, *, rows: bool = False) -> TableManifest | None:
    """Open tables; None if `shards` are none.

    An item is a `.parquet` file, a folder of them, or a glob or `{0..9}` range; a folder with the
    `index.json` of LitData, or that file, if its chunks hold rows of Arrow; with `rows`, also
    an `.arrow` file, and a folder that `save_to_disk` of Hugging Face's datasets wrote, which are
    files of tokens otherwise. Raises DataError for what cannot be read so, if tables have other
    columns than the first one, and if only some items are tables.
    """
    items = items_of(shards)
    paths = files_of_items(items, lambda item: _files(item, rows), "a table")
    if paths is None:
        if rows:
            given = ", ".join(str(shown(item)) for item in items)
            raise DataError(f"{given}: not a table, of which rows=True reads the rows")
        return None
    refuse_twice((path for path, _ in paths), "rows")
    tables = [open_(path) for path, open_ in paths]
    for table in tables:
        if table.columns != tables[0].columns:
            raise DataError(
                f"{table.file.path} has the columns {list(table.columns)}, and "
                f"{tables[0].file.path} {list(tables[0].columns)}; open them as two datasets"
            )
    if not any(table.groups for table in tables):
        raise NoShardsError(f"no rows: looked for them in {', '.join(items)}")
    return TableManifest(tables, ", ".join(items))


def is_arrow(shards: Shards) -> bool:
    """Return whether an item is an `.arrow` file, or a folder that `save_to_disk` of Hugging Face's
    datasets wrote, whose rows are samples or tokens as the reader says."""
    return any(
        not shard_access.is_url(item)
        and (item.endswith(ARROW) or arrow_files.is_saved_dataset(Path(item).expanduser()))
        for item in items_of(shards)
    )


def _files(item: str, rows: bool) -> list[tuple[Path, _Open]] | None:
    suffixes = (PARQUET, ARROW) if rows else (PARQUET,)
    if shard_access.is_url(item):
        instead = "copy them, or write tars, which are read from any URL"
        shard_access.refuse_at_url(item, suffixes, "tables", instead)
        return None
    path = Path(item).expanduser().absolute()
    if path.is_dir():
        return _files_of_folder(path, rows)
    if path.name == INDEX and path.is_file():
        return _litdata_tables(path)
    if path.suffix not in suffixes:
        return None
    found = find_files(path, "tables")
    return [(one, open_parquet if one.suffix == PARQUET else open_arrow) for one in found]


def _files_of_folder(folder: Path, rows: bool) -> list[tuple[Path, _Open]] | None:
    if arrow_files.is_saved_dataset(folder):
        saved = arrow_files.saved_files(folder) if rows else []
        return [(path, open_arrow) for path in saved] or None
    if rows:
        arrow_files.refuse_splits(folder)
    if is_folder_of_tars(folder):
        return None
    if (folder / INDEX).is_file():
        return _litdata_tables(folder / INDEX)
    tables = [path for path in entries_of(folder) if path.name.endswith(PARQUET)]
    return [(path, open_parquet) for path in tables] or None


def _litdata_tables(place: Path) -> list[tuple[Path, _Open]] | None:
    """Return the chunks of an `index.json` of LitData whose items are rows; None for others."""
    index = load_index(place)
    chunks = row_chunks(place, index) if is_litdata(index) else None
    if chunks is None:
        return None
    return [(path, partial(open_arrow_rows, rows=rows)) for path, rows in chunks]
