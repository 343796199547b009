"""Names and places in a store: <root>/runs/<run>/steps/<step>-<session>/."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from checkpointing.errors import StoreError

MANIFEST = "manifest.json"
MAX_STEP = 10**10 - 1  # ten digits, so that names sort as numbers

_CHECKPOINT_NAME = re.compile(r"(\d{10})-([0-9a-f]{8})")
_BIN_NAME = re.compile(r"rank-\d{5,}\.bin")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def local_root(url: str | os.PathLike[str]) -> Path:
    """The absolute directory that `url` (a path or file:///path) names.

    Raises:
        StoreError: any other URL scheme.
    """
    text = os.fspath(url)
    if not _SCHEME.match(text):
        return Path(text).expanduser().absolute()
    parts = urlsplit(text)
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
        raise StoreError(
            f"cannot keep checkpoints at {text!r}: this version writes to a local or shared file "
            "system only; give a path such as /scratch/me/ckpts, or file:///scratch/me/ckpts"
        )
    return Path(unquote(parts.path))


def steps_dir(root: Path, run: str) -> Path:
    """Where the checkpoints of `run` lie.

    Raises:
        ValueError: `run` is no plain name.
    """
    if not _RUN_NAME.fullmatch(run):
        raise ValueError(
            f"run name {run!r}: use letters, digits, '.', '_' and '-', starting with a letter or "
            "digit (it becomes a folder)"
        )
    return root / "runs" / run / "steps"


def checkpoint_name(step: int, session: str) -> str:
    """Directory name and id of a checkpoint; `session` is 8 hex digits."""
    return f"{step:010d}-{session}"


def step_of(name: str) -> int | None:
    """The step that a checkpoint's directory name states, None if it is no such name."""
    match = _CHECKPOINT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def bin_name(rank: int) -> str:
    return f"rank-{rank:05d}.bin"


def part_name(rank: int) -> str:
    return f"part-{rank:05d}.json"


def is_bin_name(name: str) -> bool:
    """Whether a manifest may refer to a file of this name (never a path out of its directory)."""
    return _BIN_NAME.fullmatch(name) is not None
