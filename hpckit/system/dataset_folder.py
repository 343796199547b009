"""The local folder of a dataset, and the part of a path that exists."""

from __future__ import annotations

from pathlib import Path

from checkpointing import local_folder

_PATTERN = frozenset("*?[{")
_FILES = (".tar", ".bin", ".idx", ".arrow")


def data_folder(shards: str) -> Path | None:
    """Returns the folder that holds `shards`, which are a folder, a tar file, a token file or a
    pattern, or None if they are not local."""
    folder = local_folder(shards)
    if folder is None:
        return None
    for part in (*reversed(folder.parents), folder):
        if _PATTERN & set(part.name):
            return part.parent
    is_pair = Path(f"{folder}.idx").is_file()  # of Megatron, without a suffix
    return folder.parent if folder.suffix in _FILES or is_pair else folder


def nearest(path: Path) -> Path:
    """Returns `path` if it exists, or the nearest existing folder above it.

    Raises:
        OSError: a folder cannot be examined.
    """
    for folder in (path, *path.parents):
        try:
            folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        return folder
    return path
