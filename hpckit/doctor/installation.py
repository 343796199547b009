"""Checks which hpckit is installed: the public package index has another project's package of the
same name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from hpckit.doctor.finding import Finding, Level
from hpckit.version import VERSION

SUMMARY = (
    "Preemption-tolerant PyTorch training on Slurm: launcher, checkpoint service, data pipeline"
)
"""Summary in the metadata of this project's package, which no other package has."""


def version_line() -> str:
    """Return the version, the summary, and the location of the code."""
    return f"hpckit {VERSION}: {SUMMARY.partition(':')[0]}; from {_code()}"


def judge_installation() -> Finding:
    """Check whether the running code belongs to the package `hpckit` that pip has installed."""
    return judge(_metadata(), str(_code()))


def judge(metadata: Mapping[str, str] | None, code: str) -> Finding:
    """Return the finding. Pure.

    Args:
        metadata: the metadata of the installed package `hpckit`; None: it is not installed.
        code: the folder of this code.
    """
    here = f"{VERSION}, from {code}"
    if metadata is None:
        return Finding(Level.OK, "hpckit", f"{here}, which is a checkout or a snapshot of one")
    if metadata["Summary"] != SUMMARY:
        other = f"hpckit {metadata['Version']} of another project is also installed"
        do = "pip uninstall hpckit, then install this project's wheel by its path"
        return Finding(Level.FAIL, "hpckit", f"{here}; {other}: {metadata['Summary']}", do)
    return Finding(Level.OK, "hpckit", here)


def _code() -> Path:
    return Path(__file__).resolve().parents[1]


def _metadata() -> Mapping[str, str] | None:
    try:
        found = distribution("hpckit").metadata
    except PackageNotFoundError:
        return None
    return {name: str(found[name] or "") for name in ("Version", "Summary")}
