"""`hpckit top` in a terminal, with keys that are really struck."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json
from tests.integration.cli.run_commands import HPCKIT
from tests.integration.run.runs import ALONE, PACED, command, started
from tests.unit.hpckit.report.sample_runs import submitted, write

PATIENCE_S = 300.0
_HOME = "\x1b[H"
_USUAL_SCREEN = "\x1b[?1049l"
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """What a program writes to it, since it was last asked; and keys."""

    def __init__(self, handle: int, process: subprocess.Popen[bytes]) -> None:
        self._handle, self._process, self._seen = handle, process, ""

    @property
    def seen(self) -> str:
        return self._seen

    def strike(self, keys: str) -> None:
        self._seen = ""
        os.write(self._handle, keys.encode())

    def resize_once(self, columns: int, rows: int) -> None:
        """Make it of this size, with the signal that programs get of it."""
        self._seen = ""
        termios.tcsetwinsize(self._handle, (rows, columns))
        self._process.send_signal(signal.SIGWINCH)

    def resize(self, columns: int, rows: int) -> None:
        """Make it of this size, of which the next screens are."""
        termios.tcsetwinsize(self._handle, (rows, columns))
        self._seen = ""
        for _ in range(2):  # what is written now may be of the size before
            self.wait_for(_HOME)
            self._seen = self._seen.rpartition(_HOME)[2]

    def wait_for(self, text: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while text not in self._seen:
            assert time.monotonic() < deadline_s, f"no {text!r} in {self._seen[-2000:]!r}"
            ready, _, _ = select.select([self._handle], [], [], 0.2)
            if ready:
                self._seen += os.read(self._handle, 65536).decode(errors="replace")

    def lines(self) -> list[str]:
        """The newest whole screen, without colours."""
        frames = self._seen.split(_HOME)
        return _CODES.sub("", frames[-2]).replace("\r", "").split("\n")


@contextmanager
def top(
    root: Path, columns: int = 140, rows: int = 30, every: float = 0.5, end: int | None = None
) -> Iterator[Terminal]:
    """It is left by its own key, or by the signal `end`, and then the terminal is as it was."""
    mine, its = pty.openpty()
    termios.tcsetwinsize(its, (rows, columns))
    modes = termios.tcgetattr(its)
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [HPCKIT, "top", f"--root={root}", f"--every={every}"],
        stdin=its,
        stdout=its,
        stderr=its,
        env=env | {"TERM": "xterm"},
    )
    try:
        terminal = Terminal(mine, process)
        terminal.wait_for("q: quit")
        yield terminal
        if end is None:
            terminal.strike("q")
        else:
            process.send_signal(end)
        terminal.wait_for(_USUAL_SCREEN)
        assert process.wait(PATIENCE_S) == (0 if end is None else 128 + end)
        assert termios.tcgetattr(its) == modes
    finally:
        process.kill()
        process.wait()
        os.close(its)
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


def test_a_run_is_opened_on_a_terminal_that_becomes_small(reference: RunDir) -> None:
    with top(reference.path.parent, 80, 24) as terminal:
        terminal.wait_for(reference.name[:6])
        terminal.strike("\r")
        for columns, rows in ((80, 24), (40, 12)):
            terminal.resize(columns, rows)
            terminal.wait_for("esc: back")
            terminal.wait_for("Job completed")
            terminal.wait_for(_HOME)
            shown = terminal.lines()
            assert len(shown) <= rows
            assert max(map(len, shown)) <= columns
        terminal.strike("?")
        terminal.wait_for("any key: back")
        terminal.strike("x\x1b")
        terminal.wait_for("enter: open")


def test_a_new_size_is_shown_at_once_and_a_signal_leaves_the_terminal_as_it_was(
    tmp_path: Path,
) -> None:
    run = submitted(tmp_path / "torn-1")
    write(run, '{"time": 1.0, "kin')
    with top(tmp_path, every=2 * PATIENCE_S, end=signal.SIGTERM) as terminal:
        assert run.name in terminal.seen
        assert "torn line" not in terminal.seen, "warnings stay off the screen"
        terminal.resize_once(50, 10)
        terminal.wait_for(_HOME)


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_again(tmp_path: Path) -> None:
    run = submitted(tmp_path / "first-1")
    mine, its = pty.openpty()
    shell = subprocess.Popen(
        ["setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"],
        stdin=its,
        stdout=its,
        stderr=its,
        env=os.environ | {"TERM": "xterm"},
    )
    try:
        terminal = Terminal(mine, shell)
        terminal.strike(f"{shlex.quote(HPCKIT)} top --root={tmp_path}\r")
        terminal.wait_for(run.name)
        terminal.strike("\x1a")
        terminal.wait_for("Stopped")
        assert _USUAL_SCREEN in terminal.seen
        terminal.strike("fg\r")
        terminal.wait_for("q: quit")
        terminal.strike("?")
        terminal.wait_for("any key: back")
        terminal.strike("xq")
        terminal.wait_for(_USUAL_SCREEN)
        terminal.strike("exit\r")
        assert shell.wait(PATIENCE_S) == 0
    finally:
        shell.kill()
        shell.wait()
        os.close(its)
        os.close(mine)


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
