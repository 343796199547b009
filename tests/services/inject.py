"""Faults of single system calls of a program, by strace: any errno, any n-th call, or a kill there.

Neither root nor a special file system is needed; a program so run is slower only at these calls.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import find_tools

TOOLS = {"strace": "strace"}


@dataclass(frozen=True)
class Injected:
    """`[*prefix, program, ...]` runs with the faults, as the process that was started."""

    prefix: list[str]
    _log: Path

    @property
    def calls(self) -> list[str]:
        """The calls that met with a fault so far, as strace shows them."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(r"INJECTED|DELAYED|= \?$", line)]


@contextmanager
def inject(rules: Sequence[str]) -> Iterator[Injected]:
    """Let system calls of a program, its threads and its children fail.

    Args:
        rules: as strace(1) takes after `-e inject=`: "fsync:error=EIO:when=3" for the third fsync
            of each thread, "fsync,fdatasync:error=EIO:when=3+" for it and all later ones,
            "link,linkat:signal=KILL:when=1" for a kill in place of the call,
            "write:delay_enter=500000" for half a second (in microseconds) before each one. Which
            calls a program makes differs between machines: name all that may be meant.

    Raises:
        MissingToolError: no strace.
    """
    strace = find_tools(TOOLS)["strace"]
    calls = ",".join(rule.partition(":")[0] for rule in rules)
    with tempfile.TemporaryDirectory(prefix="hpckit-inject-") as directory:
        log = Path(directory) / "strace.log"
        log.touch()
        options = [f"--inject={rule}" for rule in rules]
        if not any(":signal=" in rule for rule in rules):  # with it, strace 6.1 loses signals
            options.append("--seccomp-bpf")
        # -D: the program is the child, and strace the grandchild, so that a kill hits the program
        command = [strace, "-D", "-f", "-q", "-o", str(log), f"--trace={calls}", *options, "--"]
        yield Injected(command, log)
