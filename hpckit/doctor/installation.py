"""Checks which hpckit is installed: the public package index has another project's package of the
same name."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import hpckit
from hpckit.distribution import (
    EARLIER_NAME,
    NAME,
    REPAIR,
    SUMMARY,
    NamedDistribution,
    describe_conflict,
)
from hpckit.doctor.finding import Finding, Level
from hpckit.version import VERSION


def version_line() -> str:
    """Return the version, the summary, and the location of the code."""
    return f"hpckit {VERSION}: {SUMMARY.partition(':')[0]}; from {_code()}"


def judge_installation() -> Finding:
    """Check whether another distribution is installed over this one."""
    own = getattr(hpckit, "__version__", None) == VERSION
    return judge(_named(), str(_code()), is_overwritten=not own, is_installed=_is_installed())


def judge(
    found: NamedDistribution | None, code: str, *, is_overwritten: bool, is_installed: bool
) -> Finding:
    """Return the finding. Pure.

    Args:
        found: the installed distribution `hpckit`, if there is one.
        code: the folder of this code.
        is_overwritten: whether `hpckit/__init__.py` is another one than this project's.
        is_installed: whether this project is installed by its name of now.
    """
    here = f"{VERSION}, from {code}"
    if found is not None and (is_installed or not found.is_ours):
        broken = "; its hpckit/__init__.py has replaced this one's" if is_overwritten else ""
        return Finding(Level.FAIL, "hpckit", f"{here}; {describe_conflict(found)}{broken}", REPAIR)
    if is_overwritten:
        what = f"{here}; its hpckit/__init__.py is missing, or another one"
        return Finding(Level.FAIL, "hpckit", what, REPAIR)
    if found is None and not is_installed:
        return Finding(Level.OK, "hpckit", f"{here}, which is a checkout or a snapshot of one")
    return Finding(Level.OK, "hpckit", here)


def _code() -> Path:
    return Path(__file__).resolve().parents[1]


def _named() -> NamedDistribution | None:
    try:
        metadata = distribution(EARLIER_NAME).metadata
    except PackageNotFoundError:
        return None
    return NamedDistribution(str(metadata["Version"] or ""), str(metadata["Summary"] or ""))


def _is_installed() -> bool:
    try:
        distribution(NAME)
    except PackageNotFoundError:
        return False
    return True
