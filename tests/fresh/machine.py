"""A machine: an overlay over the base of a release, and namespaces for what runs in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fresh.cases import BUNDLE, INTERPRETER, USERS, Case, User, ca_bundle, environment

CHECKOUT = Path(__file__).resolve().parents[2]
_FIRST = Path(__file__).with_name("machine.sh")
# If this program is killed, so is unshare, and with it the first process inside and all others
_NAMESPACES = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"),
)


def run_alone(command: Sequence[str], log: Path) -> int:
    """Run a command whose mounts and processes end with it or with this program: its status."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*_NAMESPACES, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this program alone
        )
        try:
            return process.wait()
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the first process inside: it is gone when all others are, and then unshare is too."""
    if process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in children or [str(process.pid)]:
            os.kill(int(pid), signal.SIGKILL)
        process.wait()


@dataclass(frozen=True)
class Machine:
    """The root file system of a case; its changes lie in `folder/upper`."""

    case: Case
    base: Path
    folder: Path
    pip: Path
    log: Path

    def inside(self, path: str) -> Path:
        """Where a file lies that was written inside."""
        return self.folder / "upper" / path.removeprefix("/")

    def run(self, user: User, folder: str, *command: str) -> int:
        """Run a command in a folder inside, with the environment of the user: its exit status."""
        self._give_home(user)
        first = [_FIRST, self.base, self.folder, self.pip, user.home, user.uid]
        settings = [f"{name}={value}" for name, value in environment(user, os.environ).items()]
        enter = [*map(str, first), "env", "-i", f"--chdir={folder}", *settings]
        return run_alone([*enter, *command], self.log)

    def _give_home(self, user: User) -> None:
        """The home and the cache of pip belong to the user: pip takes no cache of another."""
        self.inside(f"{user.home}/.cache/pip").mkdir(parents=True, exist_ok=True)
        for folder in (self.inside(user.home), self.pip):
            _run("chown", "-R", f"{user.uid}:{user.uid}", str(folder))


@contextmanager
def machine(case: Case, base: Path, cache: Path, *, keep: bool) -> Iterator[Machine]:
    """A machine as it is after the installation, with the network of the host."""
    folder = cache / "machines" / case.name
    made = Machine(case, base, folder, cache / "pip", cache / "logs" / f"{case.name}.log")
    made.log.write_bytes(b"")
    try:
        for part in ("upper", "work", "root"):
            (folder / part).mkdir(parents=True)
        _lead_to_network(made)
        yield made
    finally:
        if not keep:
            shutil.rmtree(folder)


def _lead_to_network(made: Machine) -> None:
    files = {f"/etc/{name}": f"/etc/{name}" for name in ("resolv.conf", "hosts")}
    if bundle := ca_bundle(os.environ):
        files[bundle] = BUNDLE
    for outside, inside in files.items():
        made.inside(inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(outside, made.inside(inside))


def copy_interpreter(made: Machine, prefix: Path) -> Path:
    """Put a Python of the host's where somebody would who installs another one: its program."""
    shutil.copytree(prefix, made.inside(INTERPRETER), symlinks=True)
    libraries = made.inside("/etc/ld.so.conf.d/interpreter.conf")
    libraries.parent.mkdir(parents=True, exist_ok=True)
    libraries.write_text(f"{INTERPRETER}/lib\n")
    made.run(USERS["root"], "/", "ldconfig")
    (program,) = made.inside(f"{INTERPRETER}/bin").glob("python3.[0-9][0-9]")
    return Path(INTERPRETER, "bin", program.name)


def copy_checkout(made: Machine, ref: str | None) -> None:
    """Put the files of the working tree, or of a commit, where the user's checkout is."""
    target = made.inside(made.case.checkout)
    target.mkdir(parents=True)
    files = _run("git", "archive", ref) if ref else _working_tree()
    _run("tar", "-x", "-C", str(target), given=files)


def _working_tree() -> bytes:
    names = "\0".join(working_tree_files()).encode()
    return _run("tar", "-c", "--no-recursion", "--null", "--files-from=-", given=names)


def working_tree_files() -> list[str]:
    """What git tracks, and what it would add."""
    listed = _run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = listed.decode().split("\0")
    return [name for name in names if name and os.path.lexists(CHECKOUT / name)]


def _run(*command: str, given: bytes = b"") -> bytes:
    done = subprocess.run(command, cwd=CHECKOUT, input=given, stdout=subprocess.PIPE, check=True)
    return done.stdout


def bytes_of(folder: Path) -> int:
    """How many bytes of the disk a folder takes; none if it is not there."""
    if not folder.exists():
        return 0
    return int(_run("du", "-s", "--block-size=1", str(folder)).split()[0])
