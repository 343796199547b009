"""Programs of another release of Debian, such as another Slurm, unpacked from its packages.

apt resolves and verifies the packages as for an empty machine, dpkg-deb unpacks them below one
folder, and patchelf leads the programs to the libraries there. Nothing is installed, and no
privileges are needed: the programs run on this machine as they are.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slurm.devcluster import tools
from slurm.devcluster.errors import DevclusterError

RELEASES = {"24.11": "trixie", "26.05": "forky"}
"""Debian's releases by the Slurm that they had when this was last run."""
_PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurmdbd", "slurm-wlm-mysql-plugin", "libmunge2"),
)
_TOOLS = {"apt-get": "apt", "dpkg-deb": "dpkg", "patchelf": "patchelf"}
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_MIRROR = "http://deb.debian.org/debian"
_DOWNLOAD_S = 900
_UNPACK_S = 120


def is_release(name: str) -> bool:
    """Returns whether the text names a release of Slurm or of Debian, and not a folder."""
    return name in RELEASES or name in (*RELEASES.values(), "sid")


def unpack(name: str, cache: Path | None = None) -> Path:
    """Returns the folder with the bin/ and sbin/ of a release of Slurm; it is downloaded if it is
    not in the cache.

    Args:
        name: of Slurm ("24.11") or of Debian ("trixie").
        cache: None: `$XDG_CACHE_HOME/hpckit`.

    Raises:
        MissingToolError: apt, dpkg or patchelf is not installed.
        DevclusterError: the packages cannot be downloaded.
    """
    release = RELEASES.get(name, name)
    folder = (cache or cache_folder()) / f"slurm-{release}"
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            # its programs have the final path in them
            _unpack(download(release, _PACKAGES, partial), partial / "prefix", folder)
            (partial / "prefix").rename(folder)
            shutil.rmtree(partial)
    return folder / "usr"


def cache_folder() -> Path:
    """Returns the folder in which what is unpacked is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpckit"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lets one process at a time go on that has this file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def download(release: str, packages: Sequence[str], place: Path) -> list[Path]:
    """Returns the files of packages and of all that they need on an empty machine, verified by apt.

    Args:
        release: of Debian ("trixie").
        packages: the names of what is wanted.
        place: an empty folder for what apt makes, the files of the packages among it.

    Raises:
        MissingToolError: apt, dpkg or patchelf is not installed.
        DevclusterError: the packages cannot be downloaded.
    """
    tools.check(_TOOLS)
    if not _KEYS.exists():
        raise DevclusterError(
            f"{_KEYS} is missing, by which packages are verified; run as root: "
            "apt-get install -y debian-archive-keyring"
        )
    for part in ("lists/partial", "cache/archives/partial"):
        (place / part).mkdir(parents=True)
    (place / "status").touch()
    source = f"deb [signed-by={_KEYS}] {_MIRROR} {release} main\n"
    (place / "sources.list").write_text(source)
    settings = {
        "Dir::State": place,
        "Dir::State::Lists": place / "lists",
        "Dir::State::status": place / "status",
        "Dir::Cache": place / "cache",
        "Dir::Etc::SourceList": place / "sources.list",
        "Dir::Etc::SourceParts": os.devnull,
        "Dir::Etc::Preferences": os.devnull,
        "Dir::Etc::PreferencesParts": os.devnull,
        "Acquire::Languages": "none",
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    apt = ("apt-get", *options, "-qq")
    _run([*apt, "update"], _DOWNLOAD_S)
    chosen = ("install", "--yes", "--download-only", "--no-install-recommends", *packages)
    _run([*apt, *chosen], _DOWNLOAD_S)
    return sorted((place / "cache/archives").glob("*.deb"))


def extract(package: Path, target: Path) -> None:
    """Puts the files of a package below a folder."""
    target.mkdir(parents=True, exist_ok=True)
    _run(["dpkg-deb", "--extract", str(package), str(target)], _UNPACK_S)


def lead_to_libraries(program: Path, loader: Path, folders: Sequence[Path]) -> None:
    """Has a program started by another loader, which looks for libraries in these folders first."""
    search = ":".join(map(str, folders))
    words = ("--set-interpreter", str(loader), "--force-rpath", "--set-rpath", search)
    _run(["patchelf", *words, str(program)], _UNPACK_S)


def _unpack(packages: Sequence[Path], place: Path, final: Path) -> None:
    """Puts Slurm's programs, and the libraries of all packages, below `place`."""
    others = place.with_name("others")
    for package in packages:
        extract(package, place if package.name.startswith("slurm") else others)
    libraries = Path("usr/lib", f"{platform.machine()}-linux-gnu")
    for file in (others / libraries).glob("*.so*"):
        if not (place / libraries / file.name).exists():
            shutil.copy2(file, place / libraries / file.name, follow_symlinks=False)
    loader = next((place / libraries).glob("ld-linux*"))
    search = [final / libraries, final / libraries / "slurm-wlm"]
    for program in [*(place / "usr/bin").iterdir(), *(place / "usr/sbin").iterdir()]:
        lead_to_libraries(program, final / libraries / loader.name, search)
        if program.name.endswith("-wlm"):
            program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)
    for part in ("etc", "usr/share", "var", "lib"):
        shutil.rmtree(place / part, ignore_errors=True)


def _run(command: Sequence[str], within_s: float) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "PATH": tools.PATH}
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DevclusterError(f"{command[0]} did not end within {within_s:g} s") from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise DevclusterError(f"{command[0]} failed: {'; '.join(output[-3:])}")
