"""The programs that a cluster needs, and the Debian packages that contain them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from slurm.devcluster.errors import DevclusterError, MissingToolError

# Daemons lie in folders that only administrators have on their path
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"

SLURM = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sinfo": "slurm-wlm",
    "scontrol": "slurm-wlm",
    "munged": "munge",
}
NAMESPACES = {"ip": "iproute2", "mount": "mount", "nsenter": "util-linux", "unshare": "util-linux"}
ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "sacctmgr": "slurm-wlm",
    "mariadbd": "mariadb-server-core",
    "mariadb": "mariadb-client-core",
    "mariadb-install-db": "mariadb-server-core",
}


LOSS = {"nft": "nftables"}


def path_with(slurm: str | None, path: str | None = None) -> str:
    """Returns the search path of programs, with the Slurm of a cluster before all others.

    Args:
        slurm: the folder with its bin/ and sbin/; None: that of this machine.
        path: the search path of all other programs; None: `PATH`.
    """
    path = PATH if path is None else path
    return path if slurm is None else f"{slurm}/bin:{slurm}/sbin:{path}"


def needed(*, namespaces: bool, accounting: bool) -> dict[str, str]:
    """Returns the Debian package of each program that such a cluster needs."""
    return SLURM | (NAMESPACES if namespaces else {}) | (ACCOUNTING if accounting else {})


def check(tools: Mapping[str, str], slurm: str | None = None) -> None:
    """
    Args:
        tools: the Debian package that has it, by name of the program.
        slurm: as for `path_with`.

    Raises:
        MissingToolError: one or more are not installed.
    """
    missing = _missing(tools, slurm)
    if missing:
        packages = sorted({tools[tool] for tool in missing})
        raise MissingToolError(
            f"{', '.join(missing)} not installed; run as root: "
            f"apt-get install -y --no-install-recommends {' '.join(packages)}"
        )


def are_there(tools: Mapping[str, str]) -> bool:
    """Returns whether `check` would pass."""
    return not _missing(tools)


def _missing(tools: Mapping[str, str], slurm: str | None = None) -> list[str]:
    path = path_with(slurm)
    return [tool for tool in tools if shutil.which(tool, path=path) is None]


def version_of(slurm: str | None) -> tuple[int, int]:
    """Returns the version of Slurm, such as (24, 11).

    Raises:
        DevclusterError: its programs do not run here.
    """
    command = shutil.which("slurmctld", path=path_with(slurm)) or "slurmctld"
    try:
        done = subprocess.run([command, "-V"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise DevclusterError(f"{command} -V failed: {error}") from error
    found = re.search(r"\b(\d+)\.(\d+)", done.stdout)
    if found is None:
        raise DevclusterError(f"{command} -V failed: {done.stderr.strip() or done.stdout.strip()}")
    return int(found[1]), int(found[2])


def without_slurm(env: Mapping[str, str]) -> dict[str, str]:
    """Returns `env` without the variables of another Slurm or of its jobs."""
    strange = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SINFO_", "SQUEUE_", "SACCT_", "SCONTROL_")
    return {key: value for key, value in env.items() if not key.startswith(strange)}
