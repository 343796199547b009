"""The text of a batch script: what submitit writes for the same parameters, to the byte.

submitit has it as a function of its own, but takes as long to import as all the rest of a dry run.
A test holds the two together.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

_NO_FLAGS = {"setup", "additional_parameters", "array_parallelism", "stderr_to_stdout", "use_srun"}


def render(command: str, parameters: Mapping[str, Any], tasks: int | None = None) -> str:
    """The script that submitit's Slurm executor submits, of these parameters.

    Args:
        command: words of shell, the last line.
        parameters: with `use_srun` false, and `setup`.
        tasks: of an array; None: it is none.
    """
    flags = {k: v for k, v in parameters.items() if v is not None and k not in _NO_FLAGS}
    flags["open-mode"] = "append"
    if tasks is not None:
        flags["array"] = f"0-{tasks - 1}%{min(tasks, parameters['array_parallelism'])}"
    flags |= parameters["additional_parameters"]
    lines = [
        *("#!/bin/bash", "", "# Parameters"),
        *_flags(flags),
        *("", "# setup", *parameters["setup"]),
        *("", "# command", "export SUBMITIT_EXECUTOR=slurm", command, ""),
    ]
    return "\n".join(lines)


def _flags(flags: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(flags):
        value = "" if flags[key] is True else f"={shlex.quote(str(flags[key]))}"
        yield f"#SBATCH --{key.replace('_', '-')}{value}"
