"""Refuses releases of frameworks that are older than an integration supports."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

OLDEST = {"accelerate": "1.15", "lightning": "2.6", "transformers": "5.23"}
"""The same versions as in the extra `integrations`."""


def refuse_older(*names: str) -> None:
    """Check installed distributions. One that has no metadata, such as a checkout, is not refused.

    Raises:
        ImportError: one is older than the oldest release that is supported.
    """
    for name in names:
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if problem := version_problem(name, installed):
            raise ImportError(problem, name=name)


def version_problem(name: str, installed: str) -> str | None:
    """Return why a version is refused, or None. Pure."""
    oldest = OLDEST[name]
    if _numbers(installed) >= _numbers(oldest):
        return None
    return (
        f"{name} {installed} is installed, and this integration needs {oldest} or newer: "
        f"pip install '{name}>={oldest}'. Without it, a Checkpointer saves the model itself"
    )


def _numbers(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2] or 0)) if found else (10**6, 0)
