"""Small files and links that are written atomically: a reader finds the old content or the new
one."""

from __future__ import annotations

import json
import logging
import os
import secrets
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


def write_text(path: Path, text: str, *, mode: int | None = None, is_durable: bool = True) -> None:
    """Writes `text` to `path` atomically, replacing any existing file.

    Args:
        mode: who may access the file, whatever the umask is; None: as the umask says.
        is_durable: whether it has to survive a crash of the machine.

    Raises:
        OSError: it cannot be written.
    """
    temporary = _temporary(path)
    first_mode = 0o666 if mode is None else 0o600

    def create(name: str, flags: int) -> int:
        return os.open(name, flags, first_mode)

    try:
        with open(
            temporary, "x", encoding="utf-8", errors="surrogateescape", opener=create
        ) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(text)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:  # whose reader has not heard of the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    if is_durable:
        sync_folder(path.parent)


def write_link(link: Path, target: Path) -> None:
    """Makes `link` a link to `target` atomically, in place of an earlier one.

    Raises:
        OSError: it cannot be made.
    """
    temporary = _temporary(link)
    try:
        temporary.symlink_to(target)
        temporary.replace(link)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def write_json(path: Path, value: Any) -> None:
    """Writes `value` to `path` as JSON, as `write_text` does."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Returns the JSON value at `path`, or None if there is no such file. A damaged file counts as
    missing, with a warning."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        log.warning("%s is damaged and is ignored: %s", path, error)
        return None


def sync_folder(path: Path) -> None:
    """Makes the names of the files in the folder `path` durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
