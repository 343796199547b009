"""The root file systems that all machines of a release begin with, made once by debootstrap."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tests.fresh.machine import run_alone

_PACKAGES = "python3,make,ca-certificates"


def base_of(release: str, cache: Path, mirror: str | None) -> Path:
    """The folder with the root file system of a release; it is made if it is not in the cache."""
    base, partial = cache / "bases" / release, cache / "bases" / f"{release}.partial"
    if base.exists():
        return base
    if partial.exists():  # of a run that was killed
        shutil.rmtree(partial)
    _need_debootstrap()
    mirror = mirror or host_mirror()
    log = cache / "logs" / f"base-{release}.log"
    print(f"{release}: debootstrap from {mirror or 'its own mirror'}, log in {log}", flush=True)
    partial.parent.mkdir(exist_ok=True)
    log.write_bytes(b"")
    command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", release, str(partial)]
    if run_alone([*command, *([mirror] if mirror else [])], log) != 0:
        sys.exit(f"debootstrap failed, see {log} and {partial}/debootstrap/debootstrap.log")
    partial.rename(base)
    return base


def python_of(base: Path) -> str:
    """The version of Python that a base has, as `Python 3.13.5`."""
    command = ["chroot", str(base), "python3", "--version"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def host_mirror() -> str | None:
    """The mirror that a host with Debian has in its apt sources; None on any other."""
    system = platform.freedesktop_os_release()
    if system["ID"] != "debian" or "VERSION_CODENAME" not in system:
        return None
    wanted = (f"Release: {system['VERSION_CODENAME']}", "Component: main", "Created-By: Packages")
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
