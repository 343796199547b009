"""Recognises stores that are folders of this machine, and runs in a store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

_MISTYPED = re.compile(
    r"(s3a?|gs|gcs|az|abfs|https?|sftp|memory|file)(?::/?|//)(?=[^/:])", re.IGNORECASE
)
RUN_IN_STORE = re.compile(r"(.+?)/+runs/+([^/]+)(?:/+steps)?/*")
"""Path of a run in a store; its groups are the store and the name of the run."""


def local_folder(url: str | os.PathLike[str]) -> Path | None:
    """Returns the directory that `url` names if it is a path or file:// URL; None for other
    URLs."""
    text = os.fspath(url)
    if "://" not in text:
        return Path(text).expanduser().absolute()
    parts = urlsplit(text)
    return Path(unquote(parts.path)) if parts.scheme.lower() == "file" else None


def meant_url(text: str) -> str | None:
    """Returns the URL that was meant where a character of its `://` is missing; None if none was.

    Without this, s3:/bucket would name a folder below the working directory.
    """
    match = _MISTYPED.match(text)
    if match is None:
        return None
    root = "/" if match[1].lower() == "file" else ""
    return f"{match[1].lower()}://{root}{text[match.end() :]}"
