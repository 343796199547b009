"""`python3 -m tests.fresh`: the README's commands on machines that have only Python and make.

If a command says what root has to install, root runs what it says, and it runs again. Where no
Python is new enough, it has to say so, and runs again with one of the host's (`--interpreter`),
which stands for one that uv would download. The program runs as root, with any Python from 3.11 on.
A machine is a root file system made by debootstrap,
below an overlay that is removed afterwards; the network is that of the host. pip has the package
index alone, and a cache that outlives the machines, into which it puts what the index lets it. A
release that was made long ago is made anew once its folder in `bases` is removed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.fresh.base import base_of, python_of
from tests.fresh.cases import (
    RELEASES,
    TOO_OLD,
    USERS,
    Case,
    all_cases,
    complaints,
    told_command,
)
from tests.fresh.machine import Machine, bytes_of, copy_checkout, copy_interpreter, machine

_GB = 10**9
_MACHINE_GB = 9  # with the CUDA build of torch: its packages as downloaded, and unpacked
_DOWNLOADS_GB = 3  # the same packages in pip's cache
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.fresh",
        description="Runs a target of the Makefile on fresh machines. It needs root, and installs "
        "debootstrap where apt-get can.",
    )
    add, users = parser.add_argument, tuple(USERS)
    releases = tuple(RELEASES)
    add("--release", nargs="+", choices=releases, default=releases, help="of Debian or Ubuntu")
    add("--user", nargs="+", choices=users, default=users, help="who runs the target")
    add("--target", default="demo", help="of the Makefile (%(default)s)")
    add("--ref", help="a commit to take instead of the files of the working tree")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpckit-fresh"
    add("--cache", type=Path, default=cache, help="bases, downloads and logs (%(default)s)")
    add("--mirror", help="of the distribution; else the host's, or debootstrap's")
    add("--space", type=float, metavar="GB", help="how much has to be free on the cache's disk")
    add("--interpreter", type=Path, metavar="PREFIX", help="of a Python for releases without one")
    add("--keep", action="store_true", help="keep the machines until the next run")
    add("--list", action="store_true", help="say what would run")
    add("variables", nargs="*", metavar="NAME=VALUE", help="for make, after --")
    options = parser.parse_args(arguments)
    options.make = ["make", options.target, *options.variables]
    options.cache = options.cache.resolve()
    return options


def main() -> None:
    options = options_of(None)
    cases = all_cases(options.release, options.user)
    if options.list:
        print("\n".join(f"{case.name}: {shlex.join(options.make)}" for case in cases))
        return
    if os.geteuid() != 0:
        sys.exit("tests.fresh needs root: it makes root file systems and mounts overlays")
    for number in _SIGNALS:
        signal.signal(number, _leave)
    os.umask(0o022)
    with _held(options.cache):
        _check_space(options, len(cases) if options.keep else 1)
        passed = [_try(case, options) for case in cases]
    print(f"{sum(passed)} of {len(cases)} passed")
    sys.exit(not all(passed))


def _leave(number: int, frame: FrameType | None) -> None:
    """End in order; a second signal does not disturb that."""
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


@contextmanager
def _held(cache: Path) -> Iterator[None]:
    """The cache with its folders, for this program alone, without machines of an earlier one."""
    for name in ("logs", "pip"):
        (cache / name).mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another tests.fresh uses {cache}: wait for its end, or say --cache")
        if (cache / "machines").exists():
            shutil.rmtree(cache / "machines")
        yield


def _check_space(options: argparse.Namespace, machines: int) -> None:
    downloads = max(0.0, _DOWNLOADS_GB - bytes_of(options.cache / "pip") / _GB)
    needed = machines * _MACHINE_GB + downloads if options.space is None else options.space
    free = shutil.disk_usage(options.cache).free / _GB
    if free < needed:
        sys.exit(
            f"{options.cache} has {free:.1f} GB free, and {needed:.1f} GB are needed: take another "
            "--cache, or say --space GB if the target needs less"
        )


def _try(case: Case, options: argparse.Namespace) -> bool:
    """Run a case and say how it went: whether it passed."""
    base = base_of(case.release, options.cache, options.mirror)
    with machine(case, base, options.cache, keep=options.keep) as made:
        command = shlex.join(options.make)
        print(f"{case.name}: {python_of(base)}, {command}, output in {made.log}", flush=True)
        received, began_s = _received(), time.monotonic()
        wrong = _run_target(made, options)
        verdict = f"FAILED: {'; '.join(wrong)}" if wrong else "passed, exit status 0"
        print(
            f"{case.name}: {verdict} ({time.monotonic() - began_s:.0f} s, "
            f".venv of {bytes_of(made.inside(case.checkout) / '.venv') / _GB:.2f} GB, "
            f"{(_received() - received) / _GB:.2f} GB received by this host)",
            *(f"    {line}" for line in _lines(made)[-40:] if wrong),
            *([f"{case.name}: kept in {made.folder}/upper"] if options.keep else []),
            sep="\n",
            flush=True,
        )
    return not wrong


def _run_target(made: Machine, options: argparse.Namespace) -> list[str]:
    """What is wrong with how the target ended. If it says what root has to install, root does so by
    the command that it says, and it runs again."""
    user, checkout = made.case.user, made.case.checkout
    if user.prepared and made.run(USERS["root"], "/", "sh", "-c", user.prepared) != 0:
        return ["root could not prepare the machine"]
    copy_checkout(made, options.ref)
    make = list(options.make)
    status = made.run(user, checkout, *make)
    if not made.case.release.python:
        if status == 0 or TOO_OLD not in made.log.read_text(errors="replace"):
            return ["it does not say that Python is too old"]
        if options.interpreter is None:
            print(f"{made.case.name}: Python is too old, as it says; no --interpreter was given")
            return []
        make.append(f"PYTHON={copy_interpreter(made, options.interpreter)}")
        status = made.run(user, checkout, *make)
    command, asked = told_command("\n".join(_lines(made))) if status else ("", "")
    if command:
        print(f"{made.case.name}: told to run as root: {command}", flush=True)
        if made.run(USERS["root"], "/", "sh", "-c", command) != 0:
            return [f"root could not run `{command}`"]
        status = made.run(user, checkout, *make)
    report = any(made.inside(checkout).glob("runs/demo-*/report/report.html"))
    output = "\n".join(_lines(made))
    wrong = complaints(options.target, status, output, report=report)
    if asked != made.case.asked:
        wrong.append(f"it asked for {asked or 'no package'}, and not for {made.case.asked}")
    return wrong


def _received() -> int:
    """How many bytes have come over the network, whoever asked for them."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    fields = [line.replace(":", " ").split() for line in lines]
    return sum(int(counts[0]) for name, *counts in fields if name != "lo")


def _lines(made: Machine) -> list[str]:
    return made.log.read_text(errors="replace").splitlines()


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"exit status {error.returncode}: {shlex.join(error.cmd)}")
