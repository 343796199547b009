"""Refuses a webdataset that is older than this package supports."""

import re
from importlib.metadata import PackageNotFoundError, version

OLDEST = (1, 0)
"""As in the extra `webdataset`."""


def refuse_older() -> None:
    """Check the installed webdataset, if there is one with metadata.

    Raises:
        ImportError: it is older than `OLDEST`.
    """
    try:
        problem = version_problem(version("webdataset"))
    except PackageNotFoundError:
        return
    if problem:
        raise ImportError(problem, name="webdataset")


def version_problem(installed: str) -> str | None:
    """Return why a version is refused, or None. Pure."""
    found = re.match(r"(\d+)\.(\d+)", installed)
    if found is None or (int(found[1]), int(found[2])) >= OLDEST:
        return None
    oldest = ".".join(map(str, OLDEST))
    return (
        f"webdataset {installed} is installed, and data.wds needs {oldest} or newer: pip install "
        f"'webdataset>={oldest}'. The rest of data does without it"
    )
