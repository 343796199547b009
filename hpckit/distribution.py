"""The name of the distribution, and other distributions that install files into the same package.

The public index has a package `hpckit` of another project: also a tool for Slurm, with the same
import package and the same command. This project's distribution is `hpckit-torch`; it was `hpckit`
before. If both are installed in one environment, the later one has replaced `hpckit/__init__.py`,
and uninstalling either of them deletes files of the other. Only the standard library is imported,
and not `importlib.metadata`, since this is read at each first import of hpckit.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

NAME = "hpckit-torch"
EARLIER_NAME = "hpckit"
LAUNCHER = (
    f"it is of the extra launcher: pip install '{NAME}[launcher]', with the wheel's path for the "
    "name"
)
"""What to do where a package of the launcher is missing."""
SUMMARY = (
    "Preemption-tolerant PyTorch training on Slurm: launcher, checkpoint service, data pipeline"
)
"""Summary in the metadata of this project's package, which no other package has."""
REPAIR = (
    f"pip uninstall {EARLIER_NAME}, then pip install --force-reinstall --no-deps {NAME}'s wheel"
)
"""What to do where both are installed. The second command replaces the files that the first one has
deleted."""


@dataclass(frozen=True)
class NamedDistribution:
    """An installed distribution whose name is `hpckit`."""

    version: str
    summary: str

    @property
    def is_ours(self) -> bool:
        """Whether it is this project's, from before it had a name of its own."""
        return self.summary == SUMMARY


def describe_missing(error: ModuleNotFoundError) -> str | None:
    """Return a sentence about a package that is not installed; None: the module is one of this
    project's."""
    missing = (error.name or "").partition(".")[0]
    if missing in ("", "hpckit", "checkpointing", "data"):
        return None
    return (
        f"the command needs the package {missing}, which is not installed in {sys.prefix}: "
        f"{LAUNCHER}"
    )


def describe_conflict(found: NamedDistribution) -> str:
    """Return a sentence about a distribution that is installed beside this one. Pure."""
    if found.is_ours:
        return (
            f"{EARLIER_NAME} {found.version}, by which {NAME} was called before, is installed in "
            "the same folder, and uninstalling it deletes files of this one"
        )
    return (
        f"{EARLIER_NAME} {found.version} of another project is installed in the same folder and "
        f"has the same command and the same package: {found.summary}"
    )


def conflict_in(packages: str | Path) -> NamedDistribution | None:
    """Return the distribution `hpckit` whose files are in a folder with packages beside those of
    this one, or None.

    Args:
        packages: the folder that contains the folder `hpckit`, such as site-packages.
    """
    try:
        names = os.listdir(packages)  # noqa: PTH208  no import of more, and no object per file
    except OSError:
        return None
    for name in names:
        if name.startswith(f"{EARLIER_NAME}-") and name.endswith(".dist-info"):
            return _read(Path(packages, name, "METADATA"))
    return None


def _read(metadata: Path) -> NamedDistribution | None:
    try:
        head = metadata.read_text("utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return None
    fields = dict(line.partition(": ")[::2] for line in head.splitlines())
    return NamedDistribution(fields.get("Version", "unknown"), fields.get("Summary", ""))


def warn_of_conflict(packages: str | Path) -> None:
    """Say once per process, and of many ranks in the first, that another distribution is installed
    over this one. It never raises."""
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) != "0":
        return
    found = conflict_in(packages)
    if found is not None:
        # a line and no warning: filters of warnings would hide it, or make it an error
        print(f"hpckit: {describe_conflict(found)}: {REPAIR}", file=sys.stderr)
