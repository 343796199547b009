"""What a cluster has left on this machine."""

from __future__ import annotations

from pathlib import Path

from slurm.devcluster.cluster import Cluster
from slurm.devcluster.daemons.processes import Process
from slurm.devcluster.nodes import cgroups


def processes(*words: str) -> list[str]:
    """The command lines of all processes that have one of `words` in theirs, or in what they know
    of their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line, known = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended, or is another user's
        if any(word.encode() in line + known for word in words) and Process.of(int(folder.name)):
            found.append(line.replace(b"\0", b" ").decode())
    return found


def of(cluster: Cluster, *marks: str) -> list[str]:
    """Processes that have one of `marks` or the cluster's folder in their command line or
    environment, and its links, mounts, cgroups and files."""
    folder, network = str(cluster.folder.path), cluster.plan.network
    links = Path("/sys/class/net").glob(f"{network.bridge}*") if network else ()
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    names = [node.name for node in cluster.plan.nodes] if cluster.plan.has_cgroups else []
    return [
        *processes(folder, *marks),
        *map(str, links),
        *(line for line in mounts if folder in line),
        *(str(top) for name in names for top in cgroups.of_node(name)),
        *map(str, cluster.folder.path.glob("**/*")),
        *([folder] if cluster.folder.path.exists() else []),
    ]
