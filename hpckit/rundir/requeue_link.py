"""Links by which a job that a person submitted finds its submission when Slurm runs it again.

The link is looked up before anything else, with only the standard library: neither config nor code
of the project, which may have changed, decide which run the job continues.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from hpckit.rundir.code_snapshot.module_names import SUPERVISOR_PROCESS, module_in
from hpckit.rundir.search_path import PYTHON_PATH, without_snapshots
from hpckit.system.atomic_files import write_link


class RequeueError(RuntimeError):
    """Raised if the job started a run that it cannot continue; says what to do."""


def requeue_link_paths(base: Path, env: Mapping[str, str]) -> list[Path]:
    """Returns the paths of a job's requeue links, in the order in which they are tried.

    The first one is in the folder where the job was submitted: the interpreter and config are
    there, so that the job's first node sees the folder, but it may not be writable. The second one
    is the user's own, by the XDG base directory specification (0.8), and may be in a folder that
    not all nodes share.
    """
    home = env.get("HOME", "")
    state = env.get("XDG_STATE_HOME") or (f"{home}/.local/state" if home else "")
    name = f"{env.get('SLURM_CLUSTER_NAME', 'cluster')}-{env['SLURM_JOB_ID']}"
    here = hashlib.sha256(os.fsencode(base)).hexdigest()[:8]  # several clusters may have one name
    own = [Path(state, "hpckit", "jobs", f"{name}-{here}")] if state.startswith("/") else []
    return [base / "runs" / ".jobs" / name, *own]


def write_requeue_links(submission: Path, base: Path, env: Mapping[str, str]) -> list[str]:
    """Writes links from this job to the submission in that folder, wherever possible. Returns why
    each failed if all did, and otherwise nothing."""
    refused = []
    links = requeue_link_paths(base, env)
    for link in links:
        try:
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_link(link, submission)  # also in place of an earlier job with the same number
        except OSError as error:
            refused.append(f"{link.parent}: {error.strerror}")
    return refused if len(refused) == len(links) else []


def find_requeued_submission(base: Path, env: Mapping[str, str]) -> Path | None:
    """Returns the folder of the submission that this job carries, or None if it has not started one
    or runs for the first time.

    Raises:
        RequeueError: the submission that it started is gone.
    """
    if "SLURM_RESTART_COUNT" not in env:
        return None
    for link in requeue_link_paths(base, env):
        if not link.is_symlink() or link.lstat().st_uid != os.getuid():
            continue  # another user's link could make this user run that user's code
        submission = link.resolve()
        if not (submission / "code" / "hpckit").is_dir():
            raise RequeueError(
                f"{link} says that this job runs {submission}, which does not exist: restore "
                "it, or submit again, which starts a new job"
            )
        return submission
    return None


def supervisor_command(
    submission: Path, env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Returns command and environment of the submission's supervisor, which runs the snapshot's
    code."""
    run = str(submission.parent.parent)
    code = submission / "code"
    module = module_in(code, SUPERVISOR_PROCESS)
    command = [sys.executable, "-u", "-m", module, run, submission.name]
    return command, {**env, **snapshot_variables(code, env)}


def snapshot_variables(code: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that make imports come from the snapshot, and neither from where a job was
    started nor from a snapshot of another submission."""
    before = without_snapshots(env.get(PYTHON_PATH, ""))
    return {
        PYTHON_PATH: f"{code}{os.pathsep}{before}" if before else str(code),
        "PYTHONSAFEPATH": "1",
    }
