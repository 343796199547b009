"""What the first process of a user-mode Linux does: mount, load modules, power off.

Runs inside, as root, without site-packages: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OUT = Path("/mnt/out")  # the only directory that is this machine's and can be written
_MODULES = Path("/run/modules")
_POWER_OFF = 0x4321FEDC
_LIBC = ctypes.CDLL(None, use_errno=True)


def sh(*command: str) -> str:
    """Run a program as root of the guest; its standard output.

    Raises:
        subprocess.CalledProcessError: it failed; what it said is on the console.
    """
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def mount(kind: str, target: Path | str, *options: str, source: str = "none") -> None:
    chosen = ("-o", ",".join(options)) if options else ()
    sh("mount", "-t", kind, *chosen, source, str(target))


def set_up(out: Path) -> None:
    """Mount what a program expects, make `out` of the host OUT, and the network its loopback."""
    os.environ.update(PATH=PATH, HOME="/root", LANG="C.UTF-8", TMPDIR="/run/tmp")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    mount("proc", "/proc")
    mount("sysfs", "/sys")
    if not os.path.ismount("/dev"):
        mount("devtmpfs", "/dev")
    for directory in ("/run", "/mnt", "/var/tmp"):
        mount("tmpfs", directory)
    for made in ("/dev/shm", "/run/lock", "/run/tmp", str(_MODULES / "lib"), str(OUT)):
        Path(made).mkdir(parents=True)
    mount("tmpfs", "/dev/shm")
    for name, fd in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        if not Path("/dev", name).is_symlink():
            Path("/dev", name).symlink_to(f"/proc/self/fd{fd}")
    mount("hostfs", OUT, str(out))
    (_MODULES / "lib/modules").symlink_to("/usr/lib/uml/modules")
    sh("ip", "link", "set", "lo", "up")


def modprobe(*names: str) -> None:
    """Load kernel modules by name."""
    sh("modprobe", "-d", str(_MODULES), "-a", *names)


def power_off() -> None:
    """End of the machine."""
    os.sync()
    _LIBC.reboot(_POWER_OFF)
