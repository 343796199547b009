"""The record of what a follower has, beside its images: with it a restarted follower fetches only
what is new."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkpointing.errors import CheckpointError, DamagedError
from checkpointing.follower.chunk_plan import ChunkIds, Slot
from checkpointing.format.canonical_json import JsonReader
from checkpointing.format.chunks import ID_BYTES
from checkpointing.format.item_table import TensorSpec
from checkpointing.format.tiles import Box

logger = logging.getLogger("checkpointing")

FORMAT, VERSION = "hpckit-follower", 1
WEIGHTS, BASES, STORED = "weights", "bases", "stored"  # the images


@dataclass(frozen=True)
class FollowRecord:
    """A step that a follower holds, and what its images contain.

    Attributes:
        store: the uuid of the store.
        patterns, dtype: what was selected, and what it was cast to.
        file: the name of the image of the step, in the folder of the target.
        tensors: the tensors as stored, by full name.
        images: for each image the ids of its contents.
    """

    store: str
    run: str
    step: int
    session: str
    created: float
    patterns: tuple[str, ...]
    dtype: str | None
    file: str
    tensors: Mapping[str, TensorSpec]
    images: Mapping[str, ChunkIds] = field(default_factory=dict)


def dump_record(record: FollowRecord) -> bytes:
    """Return the record as JSON."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        "store": record.store,
        "run": record.run,
        "step": record.step,
        "session": record.session,
        "created": record.created,
        "patterns": list(record.patterns),
        "dtype": record.dtype or "",
        "file": record.file,
        "tensors": [
            {"name": name, "dtype": spec.dtype, "shape": spec.shape, "tile": spec.tile}
            for name, spec in record.tensors.items()
        ],
        "images": {name: _slots(ids) for name, ids in record.images.items()},
    }
    return json.dumps(body, separators=(",", ":")).encode()


def load_record(data: bytes, where: str) -> FollowRecord:
    """Read back what `dump_record` wrote.

    Raises:
        DamagedError: it is something else.
    """
    try:
        body = JsonReader(json.loads(data), where)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{where}: not JSON ({error})") from error
    if body.text("format") != FORMAT or body.count("version") != VERSION:
        raise DamagedError(f"{where}: it is not a record of this version")
    tensors = {
        each.text("name"): TensorSpec(each.text("dtype"), each.counts("shape"), each.counts("tile"))
        for each in body.children("tensors")
    }
    images = body.child("images")
    file = body.text("file")
    if Path(file).name != file:
        raise DamagedError(f"{where}: names a file {file!r} of another folder")
    return FollowRecord(
        body.text("store"),
        body.text("run"),
        body.count("step"),
        body.text("session"),
        body.number("created"),
        tuple(body.texts("patterns")),
        body.text("dtype") or None,
        file,
        tensors,
        {name: _ids(images.children(name), tensors, where) for name in body.object("images")},
    )


def read_record(path: Path) -> FollowRecord | None:
    """Return the record of an earlier process; None, with a warning unless there is none, if it
    cannot be used."""
    try:
        return load_record(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except (CheckpointError, OSError) as error:
        logger.warning("everything is fetched again: %s", error)
        return None


def write_record(path: Path, record: FollowRecord) -> None:
    """Replace the record. It need not be durable, since contents are compared with it.

    Raises:
        OSError: writing failed.
    """
    replace_file(path, dump_record(record))


def replace_file(path: Path, data: bytes) -> None:
    """Create or replace a small file, readable by this user alone; readers see the old content or
    the new one.

    Raises:
        OSError: writing failed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporaries(path: Path) -> None:
    """Remove what a `replace_file` of this path has left that was killed; nothing may replace it
    meanwhile."""
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        temporary.unlink(missing_ok=True)


def _slots(ids: ChunkIds) -> list[dict[str, Any]]:
    by_name: dict[str, list[tuple[Box, bytes]]] = {}
    for (name, box), id_ in ids.items():
        by_name.setdefault(name, []).append((box, id_))
    return [
        {
            "name": name,
            "boxes": [number for box, _ in pairs for number in (*box.offsets, *box.sizes)],
            "ids": b"".join(id_ for _, id_ in pairs).hex(),
        }
        for name, pairs in by_name.items()
    ]


def _ids(
    items: list[JsonReader], tensors: Mapping[str, TensorSpec], where: str
) -> dict[Slot, bytes]:
    found: dict[Slot, bytes] = {}
    for item in items:
        name, numbers = item.text("name"), item.counts("boxes")
        spec = tensors.get(name)
        try:
            ids = bytes.fromhex(item.text("ids"))
        except ValueError as error:
            raise DamagedError(f"{where}: an id is not in hex") from error
        count, dims = len(ids) // ID_BYTES, 0 if spec is None else len(spec.shape)
        if spec is None or len(numbers) != count * 2 * dims or len(ids) % ID_BYTES:
            raise DamagedError(f"{where}: the boxes of {name!r} do not match its ids")
        for n in range(count):
            at = n * 2 * dims
            box = Box(numbers[at : at + dims], numbers[at + dims : at + 2 * dims])
            ends = zip(box.offsets, box.sizes, spec.shape, strict=True)
            if any(start + size > side for start, size, side in ends):
                raise DamagedError(f"{where}: a box of {name!r} is outside of it")
            found[name, box] = ids[n * ID_BYTES : (n + 1) * ID_BYTES]
    return found
