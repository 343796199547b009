"""What a pack holds, kept beside its shards as `pack.json`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.files import write_atomically

REPORT = "pack.json"
REPORT_VERSION = 1


@dataclass(frozen=True)
class PackedShard:
    """One shard of a pack: file name, bytes, BLAKE3 (hex), samples."""

    name: str
    bytes: int
    blake3: str
    samples: int


@dataclass(frozen=True)
class PackReport:
    """A finished pack.

    `plan` is the digest of the source's names, sizes and times; `bytes` counts the files' bytes;
    `skipped` maps a reason to the number of files (or folders) passed over for it.
    """

    plan: str
    samples_per_shard: int
    shards: tuple[PackedShard, ...]
    samples: int
    files: int
    bytes: int
    skipped: dict[str, int]


def write_report(folder: Path, report: PackReport) -> None:
    """Write `pack.json` into the folder, durably. Raises OSError."""
    content = {"version": REPORT_VERSION, **asdict(report)}
    write_atomically(folder / REPORT, json.dumps(content, indent=1).encode())


def read_report(out: Path) -> PackReport | None:
    """The report of the pack in `out`; None if `out` is absent or an empty folder.

    Raises DataError if `out` holds other things, or a pack with a shard missing or cut.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    try:
        report = _parse(json.loads((out / REPORT).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{out} already holds other things; choose a new folder") from error
    for shard in report.shards:
        path = out / shard.name
        if not path.is_file() or path.stat().st_size != shard.bytes:
            raise DataError(f"the pack in {out} is damaged ({shard.name}); remove it, pack again")
    return report


def _parse(content: Any) -> PackReport:
    if content.pop("version") != REPORT_VERSION:
        raise ValueError("another version")
    shards = tuple(PackedShard(**shard) for shard in content.pop("shards"))
    return PackReport(shards=shards, **content)
