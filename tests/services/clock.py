"""A clock that a test sets, of all processes that have its variables; see `stepped.c`."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import find_tools

TOOLS = {"gcc": "gcc"}
_SOURCE = Path(__file__).with_name("stepped.c")


@dataclass(frozen=True)
class SteppedClock:
    """Right, at first."""

    file: Path
    library: Path

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "STEPPED_CLOCK": str(self.file)}

    def step_to(self, seconds: int) -> None:
        """From the right time; at once."""
        with open(self.file, "r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))


def stepped_clock(folder: Path) -> SteppedClock:
    """
    Raises:
        MissingToolError: there is no compiler.
    """
    gcc = find_tools(TOOLS)["gcc"]
    clock = SteppedClock(folder / "clock", folder / "stepped.so")
    clock.file.write_bytes(bytes(8))
    command = [gcc, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(clock.library)]
    subprocess.run([*command, str(_SOURCE)], check=True)
    return clock
