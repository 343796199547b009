"""Starts and ends the runs of a campaign with hpckit's own commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpckit.rundir.directory import RunDir
from hpckit.submit.composition.hydra_values import quoted


class CampaignError(RuntimeError):
    """A run cannot be started; the message says why."""


def start_run(folder: Path, overrides: Sequence[str]) -> RunDir:
    """Start a run in a new folder, without waiting for it.

    Raises:
        CampaignError: it cannot be started; the folder is removed if it is empty.
    """
    words = [f"root={quoted(str(folder))}", *overrides, "--detach"]
    with new_folder(folder):
        try:
            done = _python(
                "import sys; from hpckit.submit.launch_command import main; sys.exit(main())", words
            )
            found = _runs(folder)
            if done.returncode or not found:
                message = done.stderr.strip().removeprefix("error: ")
                raise CampaignError(f"launch.py: {message or f'exit status {done.returncode}'}")
        except BaseException:  # such as Ctrl-C, when it may already be in the queue
            for run in _runs(folder):
                cancel_run(run)
            raise
    return found[0]


def cancel_run(run: RunDir) -> str | None:
    """Cancel the run, so that no part of it runs or waits any more. Returns None, or why this
    failed."""
    done = _hpckit("cancel", str(run.path))
    return f"hpckit cancel: {done.stderr.strip()}" if done.returncode else None


def resume_run(run: RunDir) -> str | None:
    """Resume the run. Returns None, or why this failed."""
    done = _hpckit("resume", str(run.path), "--detach")
    return f"hpckit resume: {done.stderr.strip()}" if done.returncode else None


@contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Create the folder for this block. After an error it is removed if it is empty.

    Raises:
        FileExistsError: it existed before.
    """
    path.mkdir(parents=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # it is not empty
            path.rmdir()
        raise


def _runs(folder: Path) -> list[RunDir]:
    return [RunDir(path.parent) for path in sorted(folder.glob("*/submissions"))]


def _hpckit(*words: str) -> subprocess.CompletedProcess[str]:
    return _python("from hpckit.cli.main import app; app()", words)


def _python(program: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)
