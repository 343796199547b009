"""`hpckit top` in a terminal, with keys that are really struck."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json
from tests.integration.cli.run_commands import HPCKIT
from tests.integration.run.runs import ALONE, PACED, command, started

PATIENCE_S = 300.0


class Terminal:
    """What a program writes to it, since it was last asked; and keys."""

    def __init__(self, handle: int) -> None:
        self._handle, self._seen = handle, ""

    def strike(self, keys: str) -> None:
        self._seen = ""
        os.write(self._handle, keys.encode())

    def wait_for(self, text: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while text not in self._seen:
            assert time.monotonic() < deadline_s, f"no {text!r} in {self._seen[-2000:]!r}"
            ready, _, _ = select.select([self._handle], [], [], 0.2)
            if ready:
                self._seen += os.read(self._handle, 65536).decode(errors="replace")


@contextmanager
def top(root: Path) -> Iterator[Terminal]:
    """It is left by its own key, and then has ended well."""
    mine, its = pty.openpty()
    process = subprocess.Popen(
        [HPCKIT, "top", f"--root={root}", "--every=0.5"],
        stdin=its,
        stdout=its,
        stderr=its,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "140", "LINES": "30"},
    )
    os.close(its)
    try:
        terminal = Terminal(mine)
        terminal.wait_for("q: quit")
        yield terminal
        terminal.strike("q")
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(mine)


def test_keys_tell_of_a_run(reference: RunDir) -> None:
    with top(reference.path.parent) as terminal:
        terminal.wait_for(reference.name)
        terminal.strike("w")
        terminal.wait_for("reached the last step")
        terminal.strike("l")
        terminal.wait_for("log of ")
        terminal.wait_for("Job completed successfully")
        terminal.strike("c")
        terminal.wait_for(f"{reference.name} is done")


def test_a_run_is_cancelled_after_a_question(tmp_path: Path, shards: Path) -> None:
    with started(tmp_path, command(tmp_path, shards, *ALONE, PACED, "train.steps=5000")) as it:
        it.wait_for_step(5)
        with top(tmp_path) as terminal:
            terminal.wait_for("running")
            terminal.strike("c")
            terminal.wait_for("y: cancel it now")
            terminal.strike("n")
            terminal.strike("c")
            terminal.wait_for("y: cancel it now")
            terminal.strike("s")
            terminal.wait_for("is being cancelled, after a save")
            status, output = it.finish()
            terminal.wait_for("stopped")
    assert status == 130, output
    verdict = read_json(it.run.verdict)
    assert verdict is not None
    assert verdict["kind"] == "stopped"


def test_without_a_terminal_it_leads_to_status(reference: RunDir) -> None:
    done = subprocess.run(
        [HPCKIT, "top", f"--root={reference.path.parent}"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "error: hpckit top needs a terminal; use hpckit status\n"
