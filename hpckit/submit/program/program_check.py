"""Finds the program of a run without running it."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import sys
import tokenize
from importlib.machinery import PathFinder
from pathlib import Path

from hpckit.config.spec import CommandSpec
from hpckit.text.suggestions import did_you_mean
from hpckit.trainer.user_program import python_program


def command_problems(command: CommandSpec, cwd: Path, *, is_installed: bool = True) -> list[str]:
    """Returns the reasons why a worker cannot run the program in the folder `cwd`; empty if it
    can.

    Args:
        is_installed: whether workers have the programs and packages of this machine, and not those
            of a container or of another interpreter, which cannot be searched from here.
    """
    if not cwd.is_dir():
        return [f"command.cwd: there is no folder {cwd}"]
    python = python_program(command.arguments)
    if python is None:
        name = command.arguments[0]
        return _executable_problems(name, cwd) if is_installed or "/" in name else []
    if python.is_module:
        return _module_problems(python.target, cwd) if is_installed else []
    return _script_problems(cwd / python.target)


def _module_problems(module: str, cwd: Path) -> list[str]:
    """Looks for the outermost package only, as a search below it would import the package."""
    package = module.partition(".")[0]
    finder = PathFinder()
    if package in sys.builtin_module_names or finder.find_spec(package, [str(cwd), *sys.path]):
        return []
    return [
        f"command.arguments: there is no module {package} in {cwd}, nor among the packages of "
        f"{sys.executable}"
    ]


def _executable_problems(name: str, cwd: Path) -> list[str]:
    place = name if "/" in name else shutil.which(name)
    if place is None:
        hint = _meant_program(name, cwd)
        return [f"command.arguments: there is no program {shlex.quote(name)} on the PATH; {hint}"]
    found = cwd / place
    if not found.is_file():
        return [f"command.arguments: there is no program {found}"]
    if not os.access(found, os.X_OK):
        return [
            f"command.arguments: {found} is not executable; run chmod +x on it, or name its "
            "interpreter first, as in `-- python train.py` or `-- bash train.sh`"
        ]
    return []


def _meant_program(name: str, cwd: Path) -> str:
    if name.endswith(".py") and (cwd / name).is_file():
        return f"write `-- python {name}`"
    if " " in name:
        return f"without quotes around all of them these are words: `-- {name}`"
    if re.match(r"[a-z_.]+=", name):
        return f"a key of the run comes before --: hpckit launch {shlex.quote(name)} -- PROGRAM"
    meant = did_you_mean(name, ("python", "python3", "torchrun", "bash"))
    return meant.rstrip() or "give its path"


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
