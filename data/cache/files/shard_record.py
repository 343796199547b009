"""The record beside a cached shard, by which a file is trusted only if it is intact.

After a crash of the machine a file may have its length and yet hold zeros. So the record names the
boot in which the file was written. After another boot, a part is downloaded from its beginning, and
a whole shard is verified by its hash before it is used again.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class CachedShardRecord:
    """The record of one entry; `url` is for messages and contains no secrets."""

    url: str
    tag: str | None
    boot: str
    hash: str | None = None
    """The BLAKE3 of the whole shard in hex; None while it grows."""

    def whole(self, found: str) -> "CachedShardRecord":
        """Return the record of the shard once it is whole, for the current boot."""
        return replace(self, hash=found, boot=boot())


@cache
def boot() -> str:
    """Return the identity of the current boot of the machine."""
    return _BOOT.read_text().strip()


def write(path: Path, record: CachedShardRecord) -> None:
    """Replace the file atomically; it is not durable, as the shard is not either. Raises
    OSError."""
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
    """Return the record; None if there is none or it is unreadable. Raises OSError."""
    try:
        found = json.loads(path.read_bytes())
        record = CachedShardRecord(**found)
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return None
    texts = (record.url, record.boot, record.tag or "", record.hash or "")
    return record if all(isinstance(text, str) for text in texts) else None
