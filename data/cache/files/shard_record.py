"""What is written beside a cached shard, so that a file is trusted only for what it is.

After a crash of the whole machine a file may have its length and yet hold zeros. So a record says
in which run of the machine the file was written; of another run, a part is begun anew, and a whole
shard is read and compared with its hash before it counts again.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class CachedShardRecord:
    """Of one entry; `url` is for people and shows no secrets."""

    url: str
    tag: str | None
    boot: str
    hash: str | None = None
    """blake3 of the whole shard in hex; None while it grows."""

    def whole(self, found: str) -> "CachedShardRecord":
        """The record of the shard once it is whole, in this run of the machine."""
        return replace(self, hash=found, boot=boot())


@cache
def boot() -> str:
    """The identity of this run of the machine."""
    return _BOOT.read_text().strip()


def write(path: Path, record: CachedShardRecord) -> None:
    """Replace the file at once; not durable, for neither is the shard. Raises OSError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(json.dumps(asdict(record)).encode())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read(path: Path) -> CachedShardRecord | None:
    """The record, None if there is none or it cannot be understood. Raises OSError."""
    try:
        found = json.loads(path.read_bytes())
        record = CachedShardRecord(**found)
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return None
    texts = (record.url, record.boot, record.tag or "", record.hash or "")
    return record if all(isinstance(text, str) for text in texts) else None
