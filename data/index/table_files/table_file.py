"""A table on disk: its groups of rows, each of which is read as a whole."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from data.errors import DataError, ShardError
from data.index.record_files.litdata_files import ROWS_END
from data.index.record_files.record_file import RESERVED
from data.index.token_files.token_file import TokenFile, examined, read_range

MOST_GROUP_BYTES = 4 << 30
"""The most bytes that a group of rows may say that it has unpacked."""

_DAMAGED = (MemoryError, OverflowError, SystemError, ValueError, OSError, KeyError)
_MAGIC = b"ARROW1"
_MARKS = (4, 8)  # bytes that mark the end of a stream, of earlier and present versions of Arrow

_log = logging.getLogger(__name__)


class RowGroup(NamedTuple):
    """A row group of Parquet, or a record batch of Arrow."""

    rows: int
    begin: int
    """Its number in a Parquet file; the offset of its message in an Arrow file."""
    bytes: int
    """Its bytes in memory of Parquet; those of its message of Arrow."""


@dataclass(frozen=True)
class TableFile:
    """The groups of a file, in order."""

    file: TokenFile
    """The facts by which another file is noticed."""
    kind: Literal["parquet", "arrow"]
    schema: bytes
    """The schema, in the form of Arrow."""
    columns: tuple[str, ...]
    groups: tuple[RowGroup, ...]

    def rows(self, group: int) -> Any:
        """Return the rows of a group, as a table or record batch of pyarrow. Raises ShardError,
        also if the file has changed since it was opened."""
        self.file.check_same()
        pa = pyarrow_for(self.file.path)
        found = self.groups[group]
        try:
            if self.kind == "arrow":
                schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
                content = read_range(self.file.path, found.begin, found.bytes)
                rows = pa.ipc.read_record_batch(pa.py_buffer(content), schema)
            else:
                from pyarrow import parquet

                with parquet.ParquetFile(
                    self.file.path, memory_map=False, page_checksum_verification=True
                ) as opened:
                    rows = opened.read_row_group(found.begin)
            # offsets of Arrow are as they are in the file, and a wrong one is a segmentation fault
            rows.validate(full=self.kind == "arrow")
        except (pa.ArrowException, *_DAMAGED) as error:
            raise _damaged(self.file.path, self._offset(group), f"group {group}", error) from error
        if rows.num_rows != found.rows:
            problem = f"group {group} has {rows.num_rows} rows, had {found.rows}"
            raise ShardError(self.file.path, self._offset(group), problem)
        return rows

    def _offset(self, group: int) -> int:
        return self.groups[group].begin if self.kind == "arrow" else 0


def open_parquet(path: Path) -> TableFile:
    """Return the row groups of a Parquet file. Raises DataError without pyarrow, ShardError for a
    damaged file, and for a group that is too large."""
    pa = pyarrow_for(path)
    from pyarrow import parquet

    file = examined(path, "uint8")
    try:
        metadata = parquet.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        parts = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        groups = [
            RowGroup(part.num_rows, number, part.total_byte_size)
            for number, part in enumerate(parts)
        ]
    except (pa.ArrowException, *_DAMAGED) as error:
        raise _damaged(path, 0, "its footer", error) from error
    for number, group in enumerate(groups):
        if group.bytes > MOST_GROUP_BYTES:
            raise ShardError(
                path,
                0,
                f"row group {number} unpacks to {group.bytes} bytes, and {MOST_GROUP_BYTES} are "
                "read at most; write it with smaller row groups",
            )
    return _table(file, "parquet", schema, groups)


def open_arrow(path: Path) -> TableFile:
    """Return the record batches of an Arrow file or stream. Raises as `open_parquet`."""
    file = examined(path, "uint8")
    return _open_batches(file, 0, file.bytes)


def open_arrow_rows(path: Path, rows: int) -> TableFile:
    """Return the record batches of the Arrow file at the end of a chunk of LitData, which has so
    many rows. Raises as `open_parquet`."""
    file = examined(path, "uint8")
    least = 4 + len(ROWS_END)
    end = read_range(file.path, max(0, file.bytes - least), min(least, file.bytes))
    begin = file.bytes - least - int.from_bytes(end[:4], "little")
    if end[4:] != ROWS_END or begin < 0:
        problem = "its items are not rows of Arrow as those of the first chunk, or it is cut short"
        raise ShardError(path, file.bytes, f"{problem}; copy it again")
    table = _open_batches(file, begin, file.bytes - least)
    if (found := sum(group.rows for group in table.groups)) != rows:
        raise ShardError(path, begin, f"has {found} rows, but index.json says {rows}; copy both")
    return table


def _open_batches(file: TokenFile, begin: int, end: int) -> TableFile:
    """Return the record batches of the Arrow file or stream in these bytes of a file."""
    path = Path(file.path)
    pa = pyarrow_for(path)
    groups: list[RowGroup] = []
    at = begin
    try:
        with pa.memory_map(file.path) as mapped:  # of which only the headers are read
            mapped.seek(begin)
            is_stream = mapped.read(len(_MAGIC)) != _MAGIC
            at = begin if is_stream else begin + 8  # the stream that is in a file
            mapped.seek(at)
            reader = pa.ipc.open_stream(mapped)
            schema = reader.schema
            coded = [field.name for field in schema if _has_dictionary(pa, field.type)]
            if coded:
                raise DataError(
                    f"{path}: its columns {coded} are dictionaries or contain some, which are not "
                    "read; write them as plain values"
                )
            at = mapped.tell()
            while (batch := _next(reader)) is not None:
                groups.append(RowGroup(batch.num_rows, at, mapped.tell() - at))
                at = mapped.tell()
            if is_stream:
                _check_end(path, at, end)
            else:
                _check_footer(pa, path, mapped, (begin, end), len(groups))
    except (pa.ArrowException, *_DAMAGED) as error:
        raise _damaged(path, at, f"record batch {len(groups)}", error) from error
    return _table(file, "arrow", schema, groups)


def _check_end(path: Path, at: int, end: int) -> None:
    """Check that a stream whose last record batch ends at byte `at` goes to `end`. Raises
    ShardError if something else follows it."""
    if at == end:
        _log.warning("%s: no end-of-stream mark at %d; it may be cut short", path, end)
    elif end - at not in _MARKS:
        problem = f"has {end - at} bytes after its last record batch, so some are damaged"
        raise ShardError(path, at, f"{problem}; copy it again")


def _check_footer(pa: Any, path: Path, mapped: Any, where: tuple[int, int], batches: int) -> None:
    """Check that the footer of a file lists so many record batches. Raises ShardError; a file has
    no footer if its writer was killed."""
    begin, end = where
    mapped.seek(max(begin, end - len(_MAGIC)))
    if mapped.read(len(_MAGIC)) != _MAGIC:
        raise ShardError(path, end, "has no footer, so it is cut short; copy or write it again")
    mapped.seek(begin)
    listed = pa.ipc.open_file(mapped.read_buffer(end - begin)).num_record_batches
    if listed != batches:
        problem = f"has {batches} record batches, but its footer lists {listed}"
        raise ShardError(path, end, f"{problem}; copy it again")


def _has_dictionary(pa: Any, kind: Any) -> bool:
    """Return whether a type is a dictionary or contains one."""
    of = pa.types
    if of.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(pa, kind.storage_type)
    if of.is_map(kind):
        return _has_dictionary(pa, kind.key_type) or _has_dictionary(pa, kind.item_type)
    if of.is_struct(kind) or of.is_union(kind):
        return any(_has_dictionary(pa, kind.field(i).type) for i in range(kind.num_fields))
    value = getattr(kind, "value_type", None)  # of lists
    return value is not None and _has_dictionary(pa, value)


def _next(reader: Any) -> Any:
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None


def _table(
    file: TokenFile, kind: Literal["parquet", "arrow"], schema: Any, groups: list[RowGroup]
) -> TableFile:
    try:
        names = tuple(schema.names)
    except ValueError as error:  # a name is not text
        raise _damaged(file.path, 0, "its schema", error) from error
    if len(set(names)) < len(names) or set(names) & set(RESERVED):
        raise DataError(f"{file.path}: its columns {list(names)} are not distinct, or are reserved")
    content = schema.remove_metadata().serialize().to_pybytes()
    return TableFile(file, kind, content, names, tuple(one for one in groups if one.rows))


def pyarrow_for(path: Path | str) -> Any:
    """Return pyarrow. Raises DataError if it is missing."""
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError as error:
        raise DataError(
            f"{path}: tables are read by pyarrow: pip install pyarrow (hpckit-torch[arrow])"
        ) from error
    return pa


def _damaged(path: Path | str, offset: int, where: str, error: Exception) -> ShardError:
    reason = " ".join(str(error).split())
    if "decrypt" in reason:
        problem = f"{where} is encrypted, which is not supported ({reason:.200}); write it plainly"
        return ShardError(path, offset, problem)
    problem = f"{where} is damaged or cut short ({reason:.200}); copy it again"
    return ShardError(path, offset, problem)
