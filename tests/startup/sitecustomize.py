"""What each Python process of the suite imports as it starts: byte code for code snapshots, and for
many processes a fork that has the imports done: see `shared_imports`.

Each run imports hpckit from a snapshot of its own, so that its processes would compile some
hundred files before they do anything. A copy in a snapshot has the size and the time of change of
its source, by which Python decides whether byte code is of a file; so that of this checkout is as
good, and is written if there is none. What differs has byte code of its own.
"""

from __future__ import annotations

import os
import sys

_IMPORTS = vars(sys.modules["_frozen_importlib_external"])
"""Of the module that finds byte code, which has no other name for it."""
_CHECKOUT = __file__.removesuffix("tests/startup/sitecustomize.py")
_PACKAGES = ("hpckit/", "checkpointing/", "data/")
_SERVICE = "checkpointing.service"
_WITH_TORCH = ("hpckit.trainer.torchrun.fork_server", "hpckit.evaluation.evaluation_worker")
_WATCHDOG = "hpckit.agent.watchdog"
_PROGRAMS = ("submitit.core._submit", _WATCHDOG, "hpckit.supervisor.user_job")
_CODE = ("from hpckit.cli.main import", "import sys; from hpckit.submit.launch_command import")
"""Beginnings of code that processes run instead of `hpckit` and `launch.py`."""
_SCRIPTS = ("launch.py", "/bin/hpckit")
_path_of_byte_code = _IMPORTS["cache_from_source"]


def _cache_from_source(path: str, *args: object, **options: object) -> str:
    found: str = _path_of_byte_code(_source_of(path), *args, **options)
    return found


def _source_of(path: str) -> str:
    """The file of this checkout that has been copied to this path; the path itself if none was."""
    _, _, inside = path.rpartition("/submissions/")
    number, _, name = inside.partition("/code/")
    if not (number.isdigit() and name.startswith(_PACKAGES)):
        return path
    state = _state(path)
    return _CHECKOUT + name if state and state == _state(_CHECKOUT + name) else path


def _state(path: str) -> tuple[float, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (each process would import pathlib)
    except OSError:
        return None
    return found.st_mtime, found.st_size


_IMPORTS["cache_from_source"] = _cache_from_source


def _program() -> list[str]:
    """What Python runs: `-m` or `-c` and what follows it, or a script and its words."""
    number = 1
    while number < len(sys.orig_argv):
        word = sys.orig_argv[number]
        if not word.startswith("-") or word in ("-m", "-c"):
            break
        number += 2 if word in ("-W", "-X") else 1
    return sys.orig_argv[number:]


def _kind(program: list[str]) -> str | None:
    """The kind of process of which a fork runs this program; None: this process runs it. Slurm
    signals programs by their place among processes, which a fork does not have, so that only tests
    to which that is nothing ask for forks in jobs. A terminal does so, too."""
    asked = os.environ.pop("SHARED_IMPORTS_FOR", None)
    if os.environ.get("SHARED_IMPORTS", "0") == "0" or not program:
        return None
    if asked:
        return asked
    first, second = [*program, ""][:2]
    if (first, second) == ("-m", _WATCHDOG):
        # Python has read it. A fork server needs it, and so is no fork of the watchdog, whose
        # imports would be its own
        os.environ.pop("PYTHONUNBUFFERED", None)
    if first == "-m" and second in _WITH_TORCH:
        return "-".join(filter(None, ("runs", os.environ.get("SHARED_IMPORTS_WITH"))))
    if first == "-m" and second == _SERVICE:
        return "services"
    is_program = (
        (first == "-m" and second in _PROGRAMS)
        or (first == "-c" and second.startswith(_CODE))
        or first.endswith(_SCRIPTS)
    )
    is_alone_in_job = "SLURM_JOB_ID" in os.environ and "SHARED_IMPORTS_IN_JOBS" not in os.environ
    return "programs" if is_program and not is_alone_in_job and not os.isatty(0) else None


def _call(name: str, function: str, *arguments: object) -> None:
    """Call a function of a module of this folder, which is imported by the name that tests have for
    it. Nothing of their package is left in this process, which may have other tests of its own."""
    sys.path.insert(0, _CHECKOUT)
    __import__(f"tests.startup.{name}")
    module = sys.modules[f"tests.startup.{name}"]
    sys.path.remove(_CHECKOUT)
    for one in [one for one in sys.modules if one.partition(".")[0] == "tests"]:
        del sys.modules[one]
    vars(module)[function](*arguments)


if "SHARED_IMPORTS_ROOM" in os.environ:
    _call("shared_imports", "serve")
elif (_KIND := _kind(_program())) is not None:
    _call("fork_request", "take_fork", _KIND, _program())
