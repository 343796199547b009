"""The report of a pack, which is stored beside its shards as `pack.json`."""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.durable_files import write_atomically
from data.errors import DataError, FetchError

if TYPE_CHECKING:
    from data.read.dataset import Dataset

REPORT = "pack.json"
REPORT_VERSION = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a pack: all are below `size`, `end` is the last one of each document, and
    `tokenizer` is the BLAKE3 (hex) of the tokenizer file; the last two are None if not known, as
    for packed token files."""

    size: int
    end: int | None
    tokenizer: str | None


@dataclass(frozen=True)
class PackedShard:
    """One shard of a pack: file name, bytes, BLAKE3 (hex), samples."""

    name: str
    bytes: int
    blake3: str
    samples: int


@dataclass(frozen=True)
class PackReport:
    """The report of a finished pack.

    `plan` is the digest of the source's names, sizes and times; `bytes` counts the files' bytes;
    `skipped` maps a reason to the number of files (or folders) skipped for it. `vocabulary` is None
    where files were packed unchanged.
    """

    plan: str
    samples_per_shard: int
    shards: tuple[PackedShard, ...]
    samples: int
    files: int
    bytes: int
    skipped: dict[str, int]
    vocabulary: Vocabulary | None


def write_report(folder: Path, report: PackReport) -> None:
    """Write `pack.json` into the folder, durably. Raises OSError."""
    content = {"version": REPORT_VERSION, **asdict(report)}
    write_atomically(folder / REPORT, json.dumps(content, indent=1).encode())


def read_report(out: Path) -> PackReport | None:
    """Return the report of the pack in `out`; None if `out` is absent or an empty folder.

    Raises DataError if `out` holds other things, or a pack with a shard missing or truncated.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    try:
        report = _parse(json.loads((out / REPORT).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{out} already contains other files; choose a new folder") from error
    for shard in report.shards:
        path = out / shard.name
        if not path.is_file() or path.stat().st_size != shard.bytes:
            raise DataError(f"the pack in {out} is damaged ({shard.name}); remove it, pack again")
    return report


def vocabulary_of(dataset: "Dataset") -> Vocabulary | None:
    """Return the vocabulary of the pack that a dataset's first shard is in; None if it is in no
    pack or the pack has none.

    Raises DataError if its report cannot be read.
    """
    place = f"{dataset.manifest.urls[0].rpartition('/')[0]}/{REPORT}"
    try:
        content = _content(place, dataset)
        return None if content is None else _parse(json.loads(content)).vocabulary
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{place} is not a report of a pack: {error}") from error


def _content(place: str, dataset: "Dataset") -> bytes | None:
    if "://" not in place:
        return Path(place).read_bytes() if Path(place).exists() else None
    sources = dataset.store.sources
    try:
        origin = sources.stat(place)
        return sources.read(place, 0, origin.bytes or 0, origin.tag)
    except FetchError as error:
        _log.info("the vocabulary is unknown: %s", error)
        return None


def _parse(content: Any) -> PackReport:
    if content.pop("version") != REPORT_VERSION:
        raise ValueError("another version")
    shards = tuple(PackedShard(**shard) for shard in content.pop("shards"))
    stored = content.pop("vocabulary", None)  # not of an older hpckit
    vocabulary = None if stored is None else Vocabulary(**stored)
    return PackReport(shards=shards, vocabulary=vocabulary, **content)
