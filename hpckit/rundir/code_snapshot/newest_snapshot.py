"""Records which submission has the newest snapshot of a project among the runs of one root, in a
link there for each user and project.

A new snapshot shares unchanged files with it, so that a sweep, or a day of tries, stores each file
once. The link is only an optimisation and no part of a run: without it, all files are copied.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path

from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import write_link
from hpckit.system.os_errors import describe_error
from hpckit.system.private_folders import folder_problem

log = logging.getLogger(__name__)


def newest_snapshot(root: Path, project: Path) -> Path | None:
    """Returns the folder of this user's submission with the newest snapshot, or None if it is
    unknown, gone, or could have been changed by others."""
    link = _link(root, project)
    with suppress(OSError):
        if link.lstat().st_uid != os.getuid():
            return None
        submission = link.resolve(strict=True)
        if submission.is_dir() and not folder_problem(submission.parents[1], is_job=False):
            return submission
    return None


def record_newest_snapshot(run: RunDir, submission: int, project: Path) -> None:
    """Records the snapshot of this submission as the newest one."""
    root = run.path.parent
    _point(_link(root, project), run.submission(submission).relative_to(root))


def record_moved_run(run: RunDir, to: Path, project: Path) -> None:
    """Records that the directory of `run` is now at `to`, in the same root."""
    link = _link(run.path.parent, project)
    try:
        first, *rest = link.readlink().parts
    except OSError:
        return  # there is no link
    if first == run.name:
        _point(link, Path(to.name, *rest))


def _link(root: Path, project: Path) -> Path:
    name = hashlib.sha256(os.fsencode(project)).hexdigest()[:16]
    return root / f".newest-{os.getuid()}-{name}"


def _point(link: Path, target: Path) -> None:
    try:
        write_link(link, target)
    except OSError as error:
        log.warning("the next snapshot shares no file with this one: %s", describe_error(error))
