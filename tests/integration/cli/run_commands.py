"""Types `hpckit` commands on a run, and reads what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from hpckit.cli.common.exit_status import REFUSED
from hpckit.cli.main import app
from hpckit.rundir.directory import RunDir
from tests.integration.run.runs import eventually

_IN_THIS_PROCESS = ("status", "why", "logs", "report", "cancel", "drill")
HPCKIT = str(Path(sys.executable).with_name("hpckit"))


@dataclass(frozen=True)
class Typed:
    """`hpckit` commands on one run, in an environment that may lead to a cluster."""

    run: RunDir
    env: Mapping[str, str]

    def type(self, command: str, *words: str) -> tuple[int, str, str]:
        """`hpckit COMMAND RUN WORDS`: exit status, output, and what went to standard error.

        Usually in this process: each process of a command takes a second of what the run needs
        too. What starts or follows a run is a process of its own."""
        if command in _IN_THIS_PROCESS and "-f" not in words:
            typed = [command, str(self.run.path), *words]
            env = {**self.env, "COLUMNS": "80"}
            found = CliRunner().invoke(app, typed, env=env, catch_exceptions=False)
            return found.exit_code, found.stdout, found.stderr
        done = subprocess.run(
            [HPCKIT, command, str(self.run.path), *words],
            env={**os.environ, **self.env, "COLUMNS": "80"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout, done.stderr

    def text(self, command: str, *words: str) -> str:
        """The output of a command that succeeds, its folded lines in one."""
        status, out, err = self.type(command, *words)
        assert status == 0, err
        assert all(len(line) <= 80 for line in out.splitlines() if str(self.run.path) not in line)
        return " ".join(out.split())

    def refusal(self, command: str, *words: str, status: int = REFUSED) -> str:
        """The one line in which a command is refused."""
        ended, _, err = self.type(command, *words)
        assert ended == status, err
        (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
        assert "Traceback" not in err
        return line

    def json(self, command: str, *words: str) -> dict[str, Any]:
        status, out, err = self.type(command, *words, "--json")
        assert status == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    def wait_until(self, **fields: object) -> dict[str, Any]:
        """The first answer of `status` with these values."""

        def look() -> dict[str, Any] | None:
            found = self.json("status")
            return found if all(found[key] == value for key, value in fields.items()) else None

        return eventually(look)
