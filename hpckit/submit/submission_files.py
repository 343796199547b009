"""Writes the files of a submission: the spec, the overrides, a copy of the code, and a manifest of
versions and of the state of git."""

from __future__ import annotations

import getpass
import os
import platform
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import dump_amended_spec, dump_spec
from hpckit.earlier_names import current
from hpckit.rundir.code_snapshot import newest_snapshot
from hpckit.rundir.code_snapshot.configured_paths import configured_paths
from hpckit.rundir.code_snapshot.imported_files import run_files
from hpckit.rundir.code_snapshot.left_out import describe_left_out
from hpckit.rundir.code_snapshot.project_files import ProjectFiles, list_project
from hpckit.rundir.code_snapshot.snapshot import (
    PACKAGES,
    CodeSnapshot,
    CodeSnapshotError,
    Project,
    content_of,
    copy_snapshot,
    git_diff,
    git_facts,
    hidden_packages,
    take_snapshot,
)
from hpckit.rundir.directory import LINKS, RunDir
from hpckit.system.atomic_files import read_json, sync_folder, write_json, write_link, write_text
from hpckit.system.installed_versions import installed_version
from hpckit.system.os_errors import describe_error
from hpckit.text.quantities import count, size

_RECORDED_PACKAGES = (
    *("torch", "numpy", "hydra-core", "submitit", "fsspec", "webdataset", "hpckit-torch"),
)


def add_submission(
    run: RunDir,
    spec: RunSpec,
    overrides: Sequence[str],
    project: Project,
    require_allowed: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda message: None,
) -> int:
    """Writes a new submission into the run directory and returns its number. The caller holds the
    run lock.

    The submission appears atomically: it is written under a hidden name, and then renamed.

    Args:
        require_allowed: called before the submission appears; raises an error to prevent it.
        say: prints a message to the user: what the code snapshot leaves out.

    Raises:
        CodeSnapshotError, OSError: the submission could not be written, and does not exist.
    """
    earlier = newest_snapshot.newest_snapshot(run.path.parent, project.root)

    def write(draft: Path) -> None:
        snapshot = _write_submission(draft, spec, overrides, project, earlier)
        require_allowed()
        if snapshot.note:
            say(f"the code snapshot leaves out {snapshot.note}")

    number = _publish(run, write)
    newest_snapshot.record_newest_snapshot(run, number, project.root)
    return number


def add_amended_submission(
    run: RunDir, spec: RunSpec, overrides: Sequence[str], earlier: int
) -> int:
    """Writes a new submission as `add_submission` does, with the code of submission `earlier` and
    with `overrides` after its overrides."""
    return _publish(run, lambda draft: _write_amended(draft, run, spec, overrides, earlier))


def _publish(run: RunDir, write: Callable[[Path], None]) -> int:
    number = max(run.submission_numbers(), default=0) + 1
    run.submissions.mkdir(exist_ok=True)
    draft = run.submissions / f".{number:03d}.{secrets.token_hex(4)}"
    draft.mkdir()
    try:
        write(draft)
        draft.rename(run.submission(number))
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        with suppress(OSError):
            run.submissions.rmdir()  # if it is empty
        if isinstance(error, OSError):
            raise CodeSnapshotError(
                f"nothing was submitted: {_describe_error(error, draft, run)}"
            ) from error
        raise
    sync_folder(run.submissions)
    point_to(run, number)
    return number


def _describe_error(error: OSError, draft: Path, run: RunDir) -> str:
    """Describes an error. A file of the draft, which is removed by now, is replaced by the run
    directory."""
    named = Path(os.fsdecode(error.filename2 or error.filename or draft))
    place = str(run.path if named.is_relative_to(draft) else named)
    return describe_error(OSError(error.errno, error.strerror, place))


def _write_submission(
    folder: Path, spec: RunSpec, overrides: Sequence[str], project: Project, earlier: Path | None
) -> CodeSnapshot:
    import yaml

    listed = _list_code(spec, project)
    with ThreadPoolExecutor(2, thread_name_prefix="git") as executor:  # while files are copied
        facts = executor.submit(git_facts, project, listed.untracked)
        diff = executor.submit(git_diff, project, listed.untracked)
        write_text(folder / "spec.yaml", dump_spec(spec))
        write_text(folder / "overrides.yaml", yaml.safe_dump(list(overrides)))
        before = earlier and earlier / "code"
        snapshot = take_snapshot(
            project,
            folder / "code",
            before,
            listed,
            _imported(spec, project),
            is_apart=spec.command is not None and bool(hidden_packages(project)),
        )
        write_text(folder / "dirty.diff", diff.result())
        manifest = {
            **_submission_facts(),
            "project": str(project.root),
            "git": facts.result(),
            "snapshot": asdict(snapshot),
        }
    write_json(folder / "manifest.json", manifest)
    return snapshot


def describe_code(spec: RunSpec, project: Project) -> str:
    """Returns a line on the code that a submission would copy, and on what it would leave out.

    Raises:
        CodeSnapshotError: there is too much in the project.
    """
    content = content_of(project, _list_code(spec, project), _imported(spec, project))
    what = f"{count(len(content.files), 'file')}, {size(content.bytes)}"
    note = describe_left_out(project.root, content.left_out)
    return f"{what}; leaves out {note}" if note else what


def _imported(spec: RunSpec, project: Project) -> set[str]:
    entry = spec.entry and current(spec.entry.partition(":")[0])
    theirs = () if spec.command is None else hidden_packages(project)
    foreign = [name for name in PACKAGES if name not in theirs]
    return run_files(spec, project.root, entry, foreign)


def _list_code(spec: RunSpec, project: Project) -> ProjectFiles:
    return list_project(project.root, project.git, configured_paths(spec, project.root))


def _write_amended(
    folder: Path, run: RunDir, spec: RunSpec, overrides: Sequence[str], earlier: int
) -> None:
    import yaml

    source = run.submission(earlier)
    before = yaml.safe_load((source / "overrides.yaml").read_text(encoding="utf-8"))
    # the copied code, which may be of an earlier release, reads it
    write_text(folder / "spec.yaml", dump_amended_spec(spec, source / "spec.yaml"))
    write_text(folder / "overrides.yaml", yaml.safe_dump([*before, *overrides]))
    shutil.copy2(source / "dirty.diff", folder / "dirty.diff")
    copy_snapshot(source / "code", folder / "code")
    manifest = {**read_json(source / "manifest.json"), **_submission_facts(), "code_of": earlier}
    write_json(folder / "manifest.json", manifest)


def _submission_facts() -> dict[str, object]:
    return {
        "created": time.time(),
        "user": getpass.getuser(),
        "host": socket.gethostname(),
        "cwd": str(Path.cwd()),
        "command": sys.argv,
        "versions": versions(),
    }


def point_to(run: RunDir, number: int) -> None:
    """Points the links at the top of the run directory to submission `number`."""
    write_link(run.current, Path("submissions") / f"{number:03d}")
    for name in LINKS:
        write_link(run.path / name, Path("current") / name)


def versions() -> dict[str, str]:
    """Returns the versions of the packages that a run depends on most, without importing any."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    there = {name: installed_version(name) for name in _RECORDED_PACKAGES}
    return found | {name: version for name, version in there.items() if version is not None}
