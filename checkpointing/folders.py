"""Stores that are folders of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit


def local_folder(url: str | os.PathLike[str]) -> Path | None:
    """The directory that `url` names, if it is a path or file:// URL; None if it is another URL."""
    text = os.fspath(url)
    if "://" not in text:
        return Path(text).expanduser().absolute()
    parts = urlsplit(text)
    return Path(unquote(parts.path)) if parts.scheme.lower() == "file" else None
