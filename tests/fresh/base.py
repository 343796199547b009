"""The root file systems that all machines of a release begin with, made once by debootstrap.

A release of Ubuntu is verified by Ubuntu's keys, which a host with Debian takes from the package of
them in Debian 13.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from slurm.devcluster.files.debian_packages import download, extract
from tests.fresh.cases import Release
from tests.fresh.machine import run_alone

_PACKAGES = "python3,make,ca-certificates"
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
_COMPONENTS = {"debian": "main", "ubuntu": "main,universe"}  # what an installation has
_UPDATES = ("updates", "security")
_KEYS = Path("usr/share/keyrings/ubuntu-archive-keyring.gpg")


def base_of(release: Release, cache: Path, mirror: str | None) -> Path:
    """The folder with the root file system of a release; it is made if it is not in the cache.

    Args:
        mirror: of the release's distribution; None: the host's, if it is of the same one, else
            that of debootstrap.
    """
    name, bases = release.name, cache / "bases"
    base, partial = bases / name, bases / f"{name}.partial"
    if base.exists():
        return base
    if partial.exists():  # of a run that was killed
        shutil.rmtree(partial)
    _need_debootstrap()
    mirror = mirror or host_mirror(release.system)
    log = cache / "logs" / f"base-{name}.log"
    print(f"{name}: debootstrap from {mirror or 'its own mirror'}, log in {log}", flush=True)
    bases.mkdir(exist_ok=True)
    log.write_bytes(b"")
    options = ["--variant=minbase", f"--include={_PACKAGES}"]
    options.append(f"--components={_COMPONENTS[release.system]}")
    if release.system == "ubuntu":
        options.append(f"--keyring={_ubuntu_keys(cache)}")
    command = ["debootstrap", *options, name, str(partial), *([mirror] if mirror else [])]
    if not (_SCRIPTS / name).exists():  # a release that is newer than this debootstrap
        command += ([] if mirror else [""]) + [str(_script(release.system))]
    if run_alone(command, log) != 0:
        sys.exit(f"debootstrap failed, see {log} and {partial}/debootstrap/debootstrap.log")
    if release.system == "ubuntu":
        _add_updates(partial, name)
    partial.rename(base)
    return base


def _script(system: str) -> Path:
    """The script by which debootstrap makes all newer releases of a distribution."""
    return _SCRIPTS / {"debian": "sid", "ubuntu": "gutsy"}[system]


def _add_updates(base: Path, name: str) -> None:
    """Name the suites of updates, which every installation has."""
    source = base / "etc/apt/sources.list"
    line = source.read_text().strip()
    updates = [line.replace(f" {name} ", f" {name}-{suite} ") for suite in _UPDATES]
    source.write_text("\n".join([line, *updates]) + "\n")


def _ubuntu_keys(cache: Path) -> Path:
    """The file of Ubuntu's keys: the host's, or the one in Debian's package of them."""
    if (installed := Path("/") / _KEYS).exists():
        return installed
    place = cache / "ubuntu-keys"
    if not (place / _KEYS).exists():
        shutil.rmtree(place, ignore_errors=True)
        for package in download("trixie", ["ubuntu-archive-keyring"], place / "apt"):
            extract(package, place)
    return place / _KEYS


def python_of(base: Path) -> str:
    """The version of Python that a base has, as `Python 3.13.5`."""
    command = ["chroot", str(base), "python3", "--version"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def host_mirror(system: str) -> str | None:
    """The mirror that a host with this distribution has in its apt sources; None on any other."""
    host = platform.freedesktop_os_release()
    if host["ID"] != system or "VERSION_CODENAME" not in host:
        return None
    wanted = (f"Release: {host['VERSION_CODENAME']}", "Component: main", "Created-By: Packages")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return next((uri for uri in found if uri.startswith("http")), None)


def _need_debootstrap() -> None:
    if shutil.which("debootstrap"):
        return
    if not shutil.which("apt-get"):
        sys.exit("debootstrap is missing: install it with the packages of this system")
    print("installing debootstrap, which is missing", flush=True)
    install = ("install", "-y", "-qq", "--no-install-recommends")
    for words in (("update", "-qq"), (*install, "debootstrap", "debian-archive-keyring")):
        done = subprocess.run(["apt-get", *words], stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            sys.exit("debootstrap cannot be installed; as root: apt-get install debootstrap")
