"""The runs of a campaign, begun and ended by hpckit's own commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpckit.rundir.directory import RunDir


class CampaignError(RuntimeError):
    """A run cannot be started; says why."""


def start_run(folder: Path, overrides: Sequence[str]) -> RunDir:
    """Start a run in a new folder, and do not wait for it.

    Raises:
        CampaignError: it cannot be started; the folder is gone again if there is nothing in it.
    """
    words = [f"root={folder}", *overrides, "--detach"]
    with new_folder(folder):
        try:
            done = _python(
                "import sys; from hpckit.submit.launch_command import main; sys.exit(main())", words
            )
            found = _runs(folder)
            if done.returncode or not found:
                said = done.stderr.strip().removeprefix("error: ")
                raise CampaignError(f"launch.py: {said or f'exit status {done.returncode}'}")
        except BaseException:  # such as Ctrl-C, when it may be in the queue already
            for run in _runs(folder):
                cancel_run(run)
            raise
    return found[0]


def cancel_run(run: RunDir) -> str | None:
    """It is given up: nothing of it runs or waits any more. None, or why that is not so."""
    done = _hpckit("cancel", str(run.path))
    return f"hpckit cancel: {done.stderr.strip()}" if done.returncode else None


def resume_run(run: RunDir) -> str | None:
    """It goes on. None, or why not."""
    done = _hpckit("resume", str(run.path), "--detach")
    return f"hpckit resume: {done.stderr.strip()}" if done.returncode else None


@contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """It is there; after an error only if there is something in it.

    Raises:
        FileExistsError: it was there before.
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
