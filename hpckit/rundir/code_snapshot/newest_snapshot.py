"""Which submission has the newest snapshot of a project, among the runs of one root: a link there,
for each user and project.

A snapshot shares the files that have not changed with it, so that a sweep, or a day of trying, has
one copy of each. It is a shortcut, no part of any run: without it, all files are copied.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

from hpckit.rundir.directory import RunDir
from hpckit.system.os_errors import describe
from hpckit.system.private_folders import folder_problem

log = logging.getLogger(__name__)


def newest_snapshot(root: Path, project: Path) -> Path | None:
    """The folder of the submission of this user whose snapshot is the newest; None if it is not
    known, or gone, or others could have changed it."""
    link = _link(root, project)
    with suppress(OSError):
        if link.lstat().st_uid != os.getuid():
            return None
        submission = link.resolve(strict=True)
        if submission.is_dir() and not folder_problem(submission.parents[1], is_job=False):
            return submission
    return None


def record_newest_snapshot(run: RunDir, submission: int, project: Path) -> None:
    """The snapshot of this submission is the newest one."""
    root = run.path.parent
    _point(_link(root, project), run.submission(submission).relative_to(root))


def record_moved_run(run: RunDir, to: Path, project: Path) -> None:
    """The directory of `run` is at `to` now, in the same root."""
    link = _link(run.path.parent, project)
    try:
        first, *rest = link.readlink().parts
    except OSError:
        return  # it shows nothing
    if first == run.name:
        _point(link, Path(to.name, *rest))


def _link(root: Path, project: Path) -> Path:
    name = hashlib.sha256(os.fsencode(project)).hexdigest()[:16]
    return root / f".newest-{os.getuid()}-{name}"


def _point(link: Path, target: Path) -> None:
    draft = link.with_name(f"{link.name}.{secrets.token_hex(4)}")
    try:
        draft.symlink_to(target)
        draft.replace(link)
    except OSError as error:
        log.warning("the next snapshot shares no file with this one: %s", describe(error))
        with suppress(OSError):
            draft.unlink()
