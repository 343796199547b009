"""Checks of a machine: facts are collected on it, and can be judged on another one."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import psutil

from hpckit.doctor.finding import Finding, Level
from hpckit.doctor.folder_visibility import FolderIdentity, identify_folder
from hpckit.doctor.scratch_disks import ScratchDisk, own_disks
from hpckit.submit.preflight.torch_version import age_problem

FILES = 4096
"""Number of files that a rank may have open, with its shards, sockets and snapshots."""
SHARED_BYTES = 4 << 30
"""Bytes of /dev/shm below which only the snapshot of a small model fits."""
_SHARED = "/dev/shm"
_PATIENCE_S = 20.0
_GPUS = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
_CONTAINERS = ("apptainer", "singularity", "enroot")
_CLOCK = ("timedatectl", "show", "--property=NTPSynchronized", "--value")


@dataclass(frozen=True)
class MachineFacts:
    """The facts about a machine; plain JSON."""

    host: str
    python: str
    torch: str | None
    """Version of torch; None: it is not installed."""
    gpus: tuple[str, ...]
    """Name and driver of each GPU."""
    shared_bytes: int
    """Free bytes in /dev/shm."""
    memory_bytes: int
    files: int
    """Number of files that a process may open."""
    interfaces: tuple[str, ...]
    """Network interfaces that are up, without the loopback."""
    is_synchronised: bool | None
    """Whether the clock is synchronised; None: not known."""
    has_py_spy: bool
    scratch: tuple[ScratchDisk, ...]
    """Places for scratch files on disks of its own."""
    containers: tuple[str, ...]
    """Installed programs that run containers."""
    cuda: str | None = None
    """Version of CUDA that torch was built for; None: none, or no torch."""
    driver_cuda: str | None = None
    """Newest version of CUDA that the driver supports; None: there is no driver."""
    nccl: str | None = None
    folders: tuple[FolderIdentity, ...] = ()
    """The folders that were asked for."""
    executable: str = ""
    """Path of the Python; empty: unknown."""
    environment: str | None = None
    """The folder of the active environment of conda or venv; None: there is none."""
    missing: tuple[str, ...] = ()
    """Commands of the set-up lines that do not exist there."""


def ask(folders: Sequence[str] = ()) -> MachineFacts:
    """Collect the facts about this machine."""
    return MachineFacts(
        host=socket.gethostname(),
        python=platform.python_version(),
        torch=_version("torch"),
        gpus=tuple(_lines(_GPUS)),
        shared_bytes=psutil.disk_usage(_SHARED).free if Path(_SHARED).is_dir() else 0,
        memory_bytes=psutil.virtual_memory().total,
        files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        interfaces=tuple(n for n, s in psutil.net_if_stats().items() if s.isup and n != "lo"),
        is_synchronised={"yes": True, "no": False}.get("".join(_lines(_CLOCK))),
        has_py_spy=shutil.which("py-spy") is not None,
        scratch=own_disks(),
        containers=tuple(name for name in _CONTAINERS if shutil.which(name)),
        cuda=cuda_of_torch(),
        driver_cuda=cuda_of_driver(_lines(("nvidia-smi",))),
        nccl=next((found for one in _NCCL if (found := _version(one))), None),
        folders=tuple(map(identify_folder, folders)),
        executable=sys.executable,
        environment=os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX"),
    )


def judge(facts: MachineFacts, wants_gpus: bool) -> Iterator[Finding]:
    """Return the findings about a machine. Pure.

    Args:
        wants_gpus: whether the config is for GPUs, or uses those that exist.
    """
    torch = "no torch" if facts.torch is None else f"torch {facts.torch}"
    software = f"{facts.host}: Python {facts.python}, {torch}"
    if facts.torch is None:
        yield Finding(Level.FAIL, "software", software, "pip install torch in this environment")
    elif (problem := age_problem(facts.torch)) is not None:
        do = "install a newer torch in this environment"
        yield Finding(Level.FAIL, "software", f"{facts.host}: {problem}", do)
    elif facts.gpus and wants_gpus and "+cpu" in facts.torch:
        do = "install a build of torch for CUDA, or set cluster.device=cpu"
        yield Finding(Level.FAIL, "software", f"{software}, which does not support GPUs", do)
    else:
        yield Finding(Level.OK, "software", software)
    yield _gpus(facts, wants_gpus)
    if facts.gpus and wants_gpus and facts.torch is not None:
        yield _driver(facts)
    yield _shared(facts)
    if facts.scratch:
        disks = ", ".join(
            f"{d.free_bytes / (1 << 30):.0f} GiB in {d.folder}" for d in facts.scratch
        )
        yield Finding(Level.OK, "disks", f"{disks}: for data.cache and cluster.slurm.scratch")
    if facts.files < FILES:
        do = "raise the limit: ulimit -n 65536 in cluster.slurm.setup, or /etc/security/limits.conf"
        yield Finding(Level.WARN, "files", f"a process may open {facts.files} files", do)
    if facts.interfaces:
        yield Finding(Level.OK, "network", ", ".join(facts.interfaces))
    else:
        yield Finding(Level.NOTE, "network", "only the loopback interface is up")
    if facts.is_synchronised is False:
        do = "ask an administrator for chrony or systemd-timesyncd"
        yield Finding(Level.WARN, "clock", "it is not synchronised", do)
    if not facts.has_py_spy:
        do = "pip install py-spy: it also shows the stacks of ranks that hang in C code"
        yield Finding(Level.NOTE, "py-spy", "not installed", do)


def judge_setup(node: MachineFacts, here: MachineFacts) -> Iterator[Finding]:
    """Return the findings about what the set-up lines of a job did on a node. Pure.

    Args:
        here: the facts of the machine that launches.
    """
    for name in node.missing:
        what = f"{name} in cluster.slurm.setup: no such command on {node.host}"
        do = f"source the file that defines {name} in a line before it, or leave the line out"
        if name == "module":
            do = f"{do}; it is often /etc/profile.d/modules.sh or lmod.sh"
        yield Finding(Level.FAIL, "setup", what, do)
    if _minor(node.python) != _minor(here.python):
        what = f"a job runs Python {node.python} ({node.executable}), and this is {here.python}"
        do = "set cluster.slurm.python to the same version, or launch with the one of the nodes"
        yield Finding(Level.FAIL, "Python of a job", what, do)
    folder = node.environment
    if folder and folder != here.environment and not _is_in(node.executable, folder):
        what = f"the set-up lines activate {folder}, but a job runs {node.executable}"
        do = f"set cluster.slurm.python={folder}/bin/python, or launch with it"
        yield Finding(Level.WARN, "Python of a job", what, do)


def _minor(python: str) -> list[str]:
    return python.split(".")[:2]


def _is_in(path: str, folder: str) -> bool:
    return path == "" or Path(path).is_relative_to(folder)


def _gpus(facts: MachineFacts, wants_gpus: bool) -> Finding:
    if facts.gpus:
        kinds = {name: facts.gpus.count(name) for name in facts.gpus}
        return Finding(
            Level.OK, "GPUs", "; ".join(f"{count} x {name}" for name, count in kinds.items())
        )
    do = "set cluster.device=cpu, or inspect a node that has GPUs with --node" if wants_gpus else ""
    return Finding(Level.NOTE if wants_gpus else Level.OK, "GPUs", "this machine shows none", do)


def _driver(facts: MachineFacts) -> Finding:
    """Check the driver, which supports all of its major version of CUDA, and older ones."""
    what = f"torch for CUDA {facts.cuda}, a driver for up to {facts.driver_cuda}, NCCL {facts.nccl}"
    if facts.cuda is None or facts.driver_cuda is None:
        return Finding(Level.NOTE, "CUDA", what.replace("None", "unknown"))
    if _major(facts.cuda) > _major(facts.driver_cuda):
        do = f"install torch for CUDA {_major(facts.driver_cuda)}, or a newer driver"
        return Finding(Level.FAIL, "CUDA", what, do)
    if facts.nccl is None:
        do = "install a torch that includes it: ranks on several GPUs communicate by NCCL"
        return Finding(Level.NOTE, "CUDA", what.replace("NCCL None", "no NCCL package"), do)
    return Finding(Level.OK, "CUDA", what)


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def cuda_of_torch() -> str | None:
    """Return torch's version of CUDA from the file that states it, because importing torch takes
    seconds."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda\b.*=\s*['\"](\d[\d.]*)['\"]", text, re.MULTILINE)
    return match[1] if match else None


def cuda_of_driver(lines: Sequence[str]) -> str | None:
    """Return the driver's version of CUDA from the output of nvidia-smi. Pure."""
    match = re.search(r"CUDA Version:\s*(\d[\d.]*)", "\n".join(lines))
    return match[1] if match else None


def _shared(facts: MachineFacts) -> Finding:
    gib = 1 << 30
    what = (
        f"{facts.shared_bytes / gib:.1f} GiB of /dev/shm, {facts.memory_bytes / gib:.0f} of memory"
    )
    if facts.shared_bytes < SHARED_BYTES:
        do = (
            "provide a larger /dev/shm (containers: --shm-size), which holds the snapshots of "
            "checkpoints"
        )
        return Finding(Level.WARN, "memory", what, do)
    return Finding(Level.OK, "memory", what)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _lines(command: tuple[str, ...]) -> list[str]:
    """Return the lines that a program prints; empty if it does not exist, or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return []
    found = [line.strip() for line in done.stdout.splitlines()]
    return [line for line in found if line] if done.returncode == 0 else []


def main() -> int:
    """Print the facts of this machine as JSON. The command-line arguments are folders to
    identify."""
    json.dump(asdict(ask(sys.argv[1:])), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
