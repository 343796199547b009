"""The versions of installed packages, without `importlib.metadata`, whose import takes longer than
most commands take for the rest of what they check."""

from __future__ import annotations

import os
import re
import sys
from functools import cache

_METADATA = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.dist-info")


def installed_version(package: str) -> str | None:
    """Returns the version of an installed package, or None: it is in the name of the folder of its
    metadata."""
    wanted = _normalized(package)
    for folder in sys.path:
        if (found := _packages_in(folder or ".").get(wanted)) is not None:
            return found
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)  # an egg, or one that an importer of its own finds
    except PackageNotFoundError:
        return None


@cache
def _packages_in(folder: str) -> dict[str, str]:
    """Returns the versions of the packages whose metadata are in a folder, by normalized name."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  no object for each of hundreds of files
    except OSError:  # it does not exist, or is an archive
        return {}
    matches = filter(None, map(_METADATA.fullmatch, names))
    return {_normalized(one["name"]): one["version"] for one in matches}


def _normalized(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
