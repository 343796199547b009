"""User-mode Linux: a kernel of our own as a process, for what this machine's kernel cannot do.

It needs no root and no virtualisation. It sees this machine's files, read-only; it has one CPU, and
its system calls are slow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.services.processes import Daemon, ServiceError, find_tools, tool

TOOLS = {"linux.uml": "user-mode-linux", "modprobe": "kmod", "gcc": "gcc"}
REPOSITORY = Path(__file__).resolve().parents[2]
CONSOLE = "console.log"
XSTATE = Path(__file__).with_name("uml_xstate.c")


def run_uml(
    module: str, arguments: Sequence[str], *, directory: Path, memory_mib: int, timeout_s: float
) -> None:
    """Boot, run the Python module `module` of this project as the first process, and power off.

    The module uses the standard library only, and ends by `uml_guest.power_off`. Its output, and
    the kernel's, goes to `directory`/console.log.

    Raises:
        MissingToolError: not installed.
        ServiceError: it did not power off within `timeout_s` seconds.
    """
    linux = find_tools(TOOLS)["linux.uml"]
    init = [sys.executable, "--", "-S", "-B", "-m", module, *arguments]
    if any(len(word.split()) != 1 for word in [*init, str(REPOSITORY)]):
        raise ServiceError(f"a kernel's command line takes no blanks, and there are some in {init}")
    command = [
        *(linux, f"mem={memory_mib}M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"),
        *("quiet", "con=null", "con0=null,fd:1", "con1=null", "ssl=null", f"uml_dir={directory}/"),
        *(f"PYTHONPATH={REPOSITORY}", f"init={init[0]}", *init[1:]),
    ]
    log = directory / CONSOLE
    env = {"LD_PRELOAD": str(_xstate(directory))}
    with Daemon.start("user-mode Linux", command, log, env, children=True) as machine:
        machine.wait_until(lambda: machine.process.poll() is not None, timeout_s)


def _xstate(directory: Path) -> Path:
    """The library without which it does not run on a processor with AMX."""
    library = directory / "uml_xstate.so"
    tool([find_tools(TOOLS)["gcc"], "-O2", "-shared", "-fPIC", "-o", str(library), str(XSTATE)])
    return library
