"""Small files that are written atomically: a reader finds the old content or the new one."""

from __future__ import annotations

import json
import logging
import os
import secrets
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path` atomically and durably, replacing any existing file."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "x", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:  # whose reader has not heard of the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


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
