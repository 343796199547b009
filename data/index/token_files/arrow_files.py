"""Arrow files with a column of token lists, as `save_to_disk` of Hugging Face's datasets writes
them.

pyarrow reads the layout: where each record batch has the tokens of its rows, and where each row
begins among them. The tokens are then read from these places like those of other token files.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.errors import DataError, ShardError
from data.index.shard.shard_index import IntArray
from data.index.token_files.token_documents import DocumentTable, TokenDocuments
from data.index.token_files.token_file import TokenFile, examined, read_numbers, status_of
from data.index.token_files.token_file_options import COLUMN, DTYPES, TokenFiles

INFO, STATE, SPLITS = "dataset_info.json", "state.json", "dataset_dict.json"
MOST_JSON = 16 << 20  # bytes
_FILE_MAGIC = b"ARROW1"
_DAMAGED = (MemoryError, OverflowError, SystemError)  # of pyarrow, for numbers that cannot be
_AGAIN = "write the dataset again, by save_to_disk"


def is_saved_dataset(folder: Path) -> bool:
    """Return whether a folder is one that `Dataset.save_to_disk` wrote."""
    return (folder / STATE).is_file() and (folder / INFO).is_file()


def saved_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a folder that `save_to_disk` wrote, in order. Raises DataError."""
    state = _json(folder / STATE)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataError(
            f"{folder}: a table of indices orders its rows, which is not read; write the dataset"
            " again, by dataset.flatten_indices().save_to_disk(...)"
        )
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{folder / STATE}: lists no files of data; {_AGAIN}")
    names = [item.get("filename") if isinstance(item, dict) else None for item in listed]
    for name in names:
        if not isinstance(name, str) or not name or name.startswith(".") or "/" in name:
            raise DataError(
                f"{folder / STATE}: {name!r:.100} is not a file of the folder; {_AGAIN}"
            )
    return [folder / str(name) for name in names]


def refuse_splits(folder: Path) -> None:
    """Raise DataError for a folder that `DatasetDict.save_to_disk` wrote, which has several
    datasets."""
    if not (folder / SPLITS).is_file():
        return
    splits = _json(folder / SPLITS).get("splits")
    names = [str(name) for name in splits] if isinstance(splits, list) else []
    raise DataError(
        f"{folder} holds the splits {', '.join(names)}: give one of them, such as"
        f" {folder / names[0] if names else folder / 'train'}"
    )


def open_arrow_file(path: Path, options: TokenFiles) -> TokenDocuments:
    """Return the documents of an Arrow file. Raises DataError if pyarrow is missing, or the file is
    damaged or contradicts `options`."""
    options.refuse(path, "each row of an Arrow file is a document", "end_of_text")
    column = options.column or COLUMN
    size, _ = status_of(str(path))
    if size == 0:
        raise ShardError(path, 0, f"is empty; {_AGAIN}")
    dtype, batches = _read_layout(path, size, column)
    if options.dtype is not None and options.dtype != dtype:
        options.refuse(path, f"its column {column!r} is of {dtype}", "dtype")
    if not any(batch.rows for batch in batches):
        raise ShardError(path, 0, "has no rows; leave it out")
    item = np.dtype(dtype).itemsize
    regions = [(one.values_at, one.values * item) for one in batches if one.values]
    return ArrowDocuments(examined(path, dtype, regions), batches)


class _Batch(NamedTuple):
    """Where a record batch has its rows, in bytes of the file."""

    rows: int
    offsets_at: int
    """The offset of the first row's begin among the values."""
    width: int
    """The bytes of each begin; 0: each row has `each` values."""
    each: int
    values_at: int
    values: int
    """The number of values."""


class ArrowDocuments(TokenDocuments):
    """The rows of all record batches of a file."""

    def __init__(self, file: TokenFile, batches: list[_Batch]) -> None:
        self.batches = batches
        self.first: IntArray = np.cumsum([0, *(batch.rows for batch in batches)], dtype=np.int64)
        super().__init__(file, int(self.first[-1]))

    @property
    def highest(self) -> int | None:
        return self.file.highest if self.file.probes else None

    def table(self, first: int, end: int) -> DocumentTable:
        parts = list(self._parts(first, end))
        return DocumentTable(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _parts(self, first: int, end: int) -> Iterator[tuple[IntArray, IntArray]]:
        number = int(np.searchsorted(self.first, first, side="right")) - 1
        while first < end:
            batch, begin = self.batches[number], int(self.first[number])
            rows = min(end, begin + batch.rows) - first
            if rows:
                yield self._rows(batch, first - begin, rows)
            first, number = first + rows, number + 1

    def _rows(self, batch: _Batch, row: int, rows: int) -> tuple[IntArray, IntArray]:
        if batch.width == 0:
            borders = np.arange(row, row + rows + 1, dtype=np.int64) * batch.each
        else:
            at = batch.offsets_at + row * batch.width
            borders = read_numbers(self.file.path, at, rows + 1, f"int{8 * batch.width}")
        if int(borders[0]) < 0 or int(borders[-1]) > batch.values:
            problem = f"rows end at value {borders[-1]} of {batch.values}"
            raise ShardError(self.file.path, batch.offsets_at, f"{problem}; {_AGAIN}")
        return batch.values_at + borders[:-1] * self.file.item, np.diff(borders)


def _read_layout(path: Path, size: int, column: str) -> tuple[str, list[_Batch]]:
    """Return the type of the tokens and the layout of the record batches. Raises DataError."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DataError(f"{path}: Arrow files are read by pyarrow: pip install pyarrow") from error
    try:
        with pa.memory_map(str(path)) as file:
            base = file.read_buffer(1).address
            file.seek(0)
            schema, batches = _opened(pa, file)
            number = _column_number(pa, schema, column, path)
            dtype = _dtype(pa, schema.field(number).type, column, path)
            place = _Place(path, base, size, column)
            return dtype, [_layout(pa, batch.column(number), place, dtype) for batch in batches]
    except (pa.ArrowException, ValueError, OSError, *_DAMAGED) as error:
        reason = " ".join(str(error).split())
        raise ShardError(path, 0, f"is not a whole Arrow file ({reason:.200}); {_AGAIN}") from error


class _Place(NamedTuple):
    path: Path
    base: int
    size: int
    column: str


def _opened(pa: Any, file: Any) -> tuple[Any, Iterator[Any]]:
    """Return (schema, record batches) of a stream or a file of Arrow. All columns are opened, as
    pyarrow copies the buffers of a file of which only some are; mapped ones are not read."""
    is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
    file.seek(0)
    if not is_file:
        reader = pa.ipc.open_stream(file)
        return reader.schema, iter(reader)
    reader = pa.ipc.open_file(file)
    return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))


def _column_number(pa: Any, schema: Any, column: str, path: Path) -> int:
    found: list[int] = schema.get_all_field_indices(column)
    if len(found) == 1:
        return found[0]
    lists = [field.name for field in schema if _is_list(pa, field.type)]
    have = f"its columns of lists are {lists}" if lists else "it has no column of lists"
    raise DataError(
        f"{path}: has {len(found)} columns {column!r}; {have}: give column=NAME of the tokens, or "
        "rows=True to read its rows with all columns"
    )


def _is_list(pa: Any, kind: Any) -> bool:
    of = pa.types
    return bool(of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind))


def _dtype(pa: Any, kind: Any, column: str, path: Path) -> str:
    if not _is_list(pa, kind) or str(kind.value_type) not in DTYPES:
        raise DataError(
            f"{path}: its column {column!r} is of type {kind}, and tokens are lists of whole"
            " numbers; give column=NAME, or tokenize the dataset"
        )
    return str(kind.value_type)


def _layout(pa: Any, array: Any, place: _Place, dtype: str) -> _Batch:
    """Return the layout of one record batch. Raises DataError."""
    values = array.values
    if array.null_count or values.null_count:
        raise ShardError(
            place.path,
            0,
            f"column {place.column!r} has rows or tokens without a value; drop them, and {_AGAIN}",
        )
    item = np.dtype(dtype).itemsize
    at = _offset(values.buffers()[-1], place, len(values) and item * (values.offset + len(values)))
    at += item * values.offset
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        at += item * kind.list_size * array.offset
        return _Batch(len(array), 0, 0, kind.list_size, at, len(values))
    width = 8 if pa.types.is_large_list(kind) else 4
    needed = len(array) and width * (array.offset + len(array) + 1)
    begins = _offset(array.buffers()[1], place, needed) + width * array.offset
    return _Batch(len(array), begins, width, 0, at, len(values))


def _offset(buffer: Any, place: _Place, needed: int) -> int:
    """Return the offset of a buffer in the file. Raises ShardError if it is not in the file."""
    if not needed:
        return 0
    at = -1 if buffer is None else buffer.address - place.base
    if buffer is None or not 0 <= at <= place.size - needed or buffer.size < needed:
        raise ShardError(
            place.path,
            0,
            f"has its column {place.column!r} compressed, or is damaged; {_AGAIN}, without"
            " compression",
        )
    return int(at)


def _json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(MOST_JSON))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}; {_AGAIN}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is no JSON object; {_AGAIN}")
    return content
