"""A cluster with all of its daemons and nodes, from `up` to `down`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from slurm.devcluster import tools
from slurm.devcluster.daemons import accounting
from slurm.devcluster.daemons.controller import Controller, start_controller, start_munged
from slurm.devcluster.daemons.program_launcher import Launcher, launcher
from slurm.devcluster.errors import DevclusterError
from slurm.devcluster.files import configuration, logs
from slurm.devcluster.files.folder import VARIABLE, ClusterFolder
from slurm.devcluster.nodes import cgroups, cluster_node, network
from slurm.devcluster.nodes.cluster_node import ClusterNode
from slurm.devcluster.options import ClusterOptions
from slurm.devcluster.plan import ClusterPlan, Network, make_plan

_STATES = ("sinfo", "--noheader", "--Node", "--format=%N %T")


@dataclass(frozen=True)
class Cluster:
    """A running cluster. As a context manager, it is taken down at the end."""

    folder: ClusterFolder
    plan: ClusterPlan

    @classmethod
    def up(cls, folder: Path | None = None, options: ClusterOptions | None = None) -> Cluster:
        """Starts a cluster; every node is idle when this returns.

        Args:
            folder: for all its files; new, or empty. None: see `ClusterFolder.named`.

        Raises:
            MissingToolError: Slurm, or what else it takes, is not installed.
            DevclusterError: it did not start; nothing of it is left, and the text says what the
                logs report.
        """
        chosen, place = options or ClusterOptions(), ClusterFolder.named(folder)
        _check(chosen)
        place.check_new()
        with launcher(place, new=True) as work, ExitStack() as undo:
            place.check_new()
            undo.callback(_take_down, work)
            place.make()
            try:
                plan = _claim(work, chosen)
                _start(work, plan)
            except DevclusterError as error:
                lines = logs.telling(place.logs)
                raise DevclusterError(f"no cluster: {error}; its logs:\n{lines}") from error
            undo.pop_all()
        return cls(place, plan)

    @classmethod
    def at(cls, folder: Path | None = None) -> Cluster:
        """Returns the cluster that is up in `folder`. None: see `ClusterFolder.named`.

        Raises:
            DevclusterError: there is none.
        """
        place = ClusterFolder.named(folder)
        return cls(place, ClusterPlan.read(place.plan))

    def down(self, keep_logs: Path | None = None) -> None:
        """Takes the cluster down; see `take_down`."""
        take_down(self.folder, keep_logs)

    @property
    def nodes(self) -> list[ClusterNode]:
        return [ClusterNode(self.folder, self.plan, node) for node in self.plan.nodes]

    def node(self, name: str) -> ClusterNode:
        """Raises:
        DevclusterError: no node has this name.
        """
        return ClusterNode(self.folder, self.plan, self.plan.node(name))

    @property
    def controller(self) -> Controller:
        return Controller(self.folder, self.plan)

    @property
    def variables(self) -> dict[str, str]:
        """Returns the environment variables by which Slurm's commands, and those of this folder,
        find the cluster."""
        found = {"SLURM_CONF": str(self.folder.slurm_conf), VARIABLE: str(self.folder.path)}
        chosen = self.plan.options.slurm
        if chosen is None:
            return found
        return found | {"PATH": tools.path_with(chosen, os.environ.get("PATH", os.defpath))}

    @property
    def env(self) -> dict[str, str]:
        """Returns the environment of this process with the variables of the cluster."""
        return tools.without_slurm(os.environ) | self.variables

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


def take_down(folder: ClusterFolder, keep_logs: Path | None = None) -> list[str]:
    """End and remove all that is left of a cluster, whatever became of it; the names of what others
    have put into its folder, which stays there.

    Args:
        keep_logs: a new folder to move the logs to.

    Raises:
        DevclusterError: there is none, `keep_logs` cannot be made, or something does not end.
    """
    if keep_logs is not None:
        _check_free(keep_logs)
    with launcher(folder) as work:
        return _take_down(work, keep_logs)


def _check_free(keep_logs: Path) -> None:
    if keep_logs.exists():
        raise DevclusterError(f"{keep_logs} already exists: choose a new folder for the logs")
    if not os.access(keep_logs.absolute().parent, os.W_OK):
        raise DevclusterError(f"{keep_logs} cannot be created: choose another folder for the logs")


def _take_down(work: Launcher, keep_logs: Path | None = None) -> list[str]:
    plan = ClusterPlan.read(work.folder.plan) if work.folder.plan.exists() else None
    if plan is not None:
        for node in plan.nodes:
            cluster_node.destroy(work, plan, node)
    for name in _daemons(work.folder):
        if process := work.recorded(name):
            process.kill_with_children()
        work.forget(name)
    if plan is not None:
        network.remove(work, plan)
        if plan.has_cgroups and (left := cgroups.remove(node.name for node in plan.nodes)):
            raise DevclusterError(f"cgroups that cannot be removed: {', '.join(map(str, left))}")
    if keep_logs is not None:
        shutil.move(work.folder.logs, keep_logs)
    return work.folder.remove()


def _daemons(folder: ClusterFolder) -> Iterator[str]:
    return (path.stem for path in folder.run.glob("*.json"))


def _check(options: ClusterOptions) -> None:
    has_namespaces = options.form == "namespaces"
    needed = tools.needed(namespaces=has_namespaces, accounting=options.accounting)
    tools.check(needed, options.slurm)
    if has_namespaces and os.geteuid() != 0:
        raise DevclusterError(
            "only root makes namespaces and networks: run this as root, or choose the ports form"
        )
    for path in options.private:
        if not Path(path).is_dir():
            raise DevclusterError(
                f"private folder {path} does not exist on this machine: create it first, as "
                "each node mounts its own one over it"
            )


def _claim(work: Launcher, options: ClusterOptions) -> ClusterPlan:
    """Makes the plan and records it before anything exists that has to be removed."""
    by_cgroup = _tracks_by_cgroup(options)

    def announce(found: Network | None) -> ClusterPlan:
        plan = make_plan(options, found, by_cgroup)
        plan.write(work.folder.plan)
        return plan

    if options.form == "namespaces":
        network.claim(work, announce)
        return ClusterPlan.read(work.folder.plan)
    return announce(None)


def _tracks_by_cgroup(options: ClusterOptions) -> bool:
    missing = cgroups.missing()
    if missing and options.tracking == "cgroup":
        raise DevclusterError(
            f"this machine has no version 1 cgroups of {', '.join(missing)} that can be written: "
            "leave the tracking of processes to linuxproc"
        )
    return options.form == "namespaces" and options.tracking != "linuxproc" and not missing


def _start(work: Launcher, plan: ClusterPlan) -> None:
    for name, text in configuration.files(work.folder, plan).items():
        _write(work.folder.path / name, text.encode())
    _write(work.folder.key, os.urandom(128))
    start_munged(work)
    if plan.options.accounting:
        accounting.start(work, plan)
    start_controller(work, plan)
    for node in plan.nodes:
        cluster_node.boot(work, plan, node)
    idle = {(node.name, "idle") for node in plan.nodes}
    work.wait("slurmctld", lambda: _states(work) == idle, 60, "at work with all nodes idle")
    cluster_node.check_reach(work, plan)


def _states(work: Launcher) -> set[tuple[str, ...]]:
    """Returns pairs of node and state; none while slurmctld does not answer."""
    lines = (work.attempt(*_STATES) or "").splitlines()
    return {tuple(line.split()) for line in lines}


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
