"""The options of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slurm.devcluster.errors import DevclusterError

Form = Literal["ports", "namespaces"]
Tracking = Literal["auto", "cgroup", "linuxproc"]

MAX_NODES = 99
# Slurm takes a GPU to be there when its device file is; these are on every machine
FAKE_GPUS = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/console",
)


@dataclass(frozen=True)
class ClusterOptions:
    """Raises:
    DevclusterError: a value is out of range, or two do not go together.
    """

    nodes: int = 4
    gpus: int = 4  # of each node; they do not exist
    cpus: int = 8  # of each node; shared, however many this machine has
    memory_mib: int | None = None  # of each node; None: as much as this machine has
    form: Form = "ports"
    accounting: bool = False  # sacct, by slurmdbd and MariaDB
    grace_s: int = 10  # from the signal of a preemption to the end
    slurmd_timeout_s: int = 10  # of silence until a node is down
    cred_expire_s: int | None = 5  # a requeued job waits so long; None: Slurm's default, 120
    user_signal: bool = True  # preempted jobs get the signal of their --signal
    tracking: Tracking = "auto"  # of jobs' processes; auto: cgroups where they can be had
    slurm: str | None = None  # folder with bin/ and sbin/ of another Slurm than this machine's
    private: tuple[str, ...] = ()  # folders that each node has of its own, empty at its start
    settings: tuple[str, ...] = ()  # "Key=Value", in place of the line in slurm.conf or added to it

    def __post_init__(self) -> None:
        for what, value, low, high in (
            ("nodes", self.nodes, 1, MAX_NODES),
            ("gpus", self.gpus, 0, len(FAKE_GPUS)),
            ("cpus", self.cpus, 1, 1024),
            ("memory", self.memory_mib or 1, 1, 1 << 30),
            ("grace", self.grace_s, 0, 65533),
            ("slurmd-timeout", self.slurmd_timeout_s, 2, 65533),
            ("cred-expire", self.cred_expire_s or 5, 2, 65533),
        ):
            if not low <= value <= high:
                raise DevclusterError(f"{what}={value}: give a number from {low} to {high}")
        for setting in self.settings:
            key, equals, _ = setting.partition("=")
            if not (equals and key.isalnum() and setting.isprintable()):
                raise DevclusterError(f"setting {setting!r}: give Key=Value, as in slurm.conf")
        for folder in self.private:
            if not folder.startswith("/") or ".." in folder.split("/"):
                raise DevclusterError(f"private folder {folder!r}: give an absolute path")
        if self.form == "ports" and self.private:
            raise DevclusterError(
                "nodes of the ports form share this machine's folders: take the namespaces form "
                "for private ones"
            )
        if self.tracking == "cgroup" and self.form == "ports":
            raise DevclusterError(
                "nodes of the ports form share one machine's cgroups: take the namespaces form "
                "for tracking by cgroups"
            )
