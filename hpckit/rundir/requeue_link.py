"""What a job that somebody else submitted finds again of itself when Slurm runs it once more.

It is looked for before anything else, by the standard library alone: neither config nor code of the
project, which may be others by then, have a say in which run it goes on with.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from hpckit.rundir.code_snapshot.module_names import SUPERVISOR_PROCESS, module_in


class RequeueError(RuntimeError):
    """The job began a run that it cannot go on with; says what to do."""


def requeue_link_paths(base: Path, env: Mapping[str, str]) -> list[Path]:
    """Links that a job may note its submission by, the first one first.

    Where the job was submitted its interpreter and config are, so its first node sees that folder;
    but it may not be written there. The other one is the user's own, as the XDG base directory
    specification (0.8) has it, which may be no folder that all nodes share.
    """
    home = env.get("HOME", "")
    state = env.get("XDG_STATE_HOME") or (f"{home}/.local/state" if home else "")
    name = f"{env.get('SLURM_CLUSTER_NAME', 'cluster')}-{env['SLURM_JOB_ID']}"
    here = hashlib.sha256(os.fsencode(base)).hexdigest()[:8]  # clusters may have one name
    own = [Path(state, "hpckit", "jobs", f"{name}-{here}")] if state.startswith("/") else []
    return [base / "runs" / ".jobs" / name, *own]


def write_requeue_links(submission: Path, base: Path, env: Mapping[str, str]) -> list[str]:
    """Write down that this job carries the submission in that folder, in every place that takes it:
    why those that did not, if none did."""
    refused = []
    links = requeue_link_paths(base, env)
    for link in links:
        draft = link.with_name(f".{link.name}.{os.getpid()}")
        try:
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            draft.symlink_to(submission)
            draft.replace(link)  # also an earlier job of the same number
        except OSError as error:
            refused.append(f"{link.parent}: {error.strerror}")
    return refused if len(refused) == len(links) else []


def find_requeued_submission(base: Path, env: Mapping[str, str]) -> Path | None:
    """The folder of the submission that this job carries; None: it has begun none, or it runs for
    the first time.

    Raises:
        ComebackError: it has begun one that is not there any more.
    """
    if "SLURM_RESTART_COUNT" not in env:
        return None
    for link in requeue_link_paths(base, env):
        if not link.is_symlink() or link.lstat().st_uid != os.getuid():
            continue  # another user's would have this one run that user's code
        submission = link.resolve()
        if not (submission / "code" / "hpckit").is_dir():
            raise RequeueError(
                f"{link} says that this job carries {submission}, which is not there: bring it "
                "back, or submit again, which begins a new job"
            )
        return submission
    return None


def supervisor_command(
    submission: Path, env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the submission's supervisor: it runs the snapshot's code."""
    run = str(submission.parent.parent)
    code = submission / "code"
    module = module_in(code, SUPERVISOR_PROCESS)
    command = [sys.executable, "-u", "-m", module, run, submission.name]
    return command, {**env, **snapshot_variables(code, env)}


def snapshot_variables(code: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Imports come from the snapshot, and not from where a job was started."""
    before = env.get("PYTHONPATH")
    return {
        "PYTHONPATH": f"{code}{os.pathsep}{before}" if before else str(code),
        "PYTHONSAFEPATH": "1",
    }
