"""Finds the program of a run without running it."""

from __future__ import annotations

import ast
import os
import shutil
import tokenize
from pathlib import Path

from hpckit.config.spec import CommandSpec
from hpckit.trainer.user_program import python_program


def command_problems(command: CommandSpec, cwd: Path) -> list[str]:
    """Returns the reasons why a worker cannot run the program in the folder `cwd`; empty if it
    can."""
    if not cwd.is_dir():
        return [f"command.cwd: there is no folder {cwd}"]
    python = python_program(command.arguments)
    if python is None:
        return _executable_problems(command.arguments[0], cwd)
    return [] if python.is_module else _script_problems(cwd / python.target)


def _executable_problems(name: str, cwd: Path) -> list[str]:
    place = name if "/" in name else shutil.which(name)
    if place is None:
        return [f"command.arguments: there is no program {name} on the PATH; give its path"]
    found = cwd / place
    if not found.is_file():
        return [f"command.arguments: there is no program {found}"]
    if not os.access(found, os.X_OK):
        return [
            f"command.arguments: {found} is not executable; run chmod +x on it, or name its "
            "interpreter first, as in `-- python train.py` or `-- bash train.sh`"
        ]
    return []


def _script_problems(script: Path) -> list[str]:
    if not script.is_file():
        return [f"command.arguments: there is no script {script}"]
    try:
        with tokenize.open(script) as file:
            ast.parse(file.read(), str(script))
    except SyntaxError as error:
        where = f"line {error.lineno}" if error.lineno else "its encoding"
        return [f"command.arguments: {script} is not valid Python, {where}: {error.msg}"]
    except (OSError, ValueError) as error:
        return [f"command.arguments: {script} cannot be read: {error}"]
    return []
