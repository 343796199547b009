"""The daemons that a cluster has once: munged, which signs messages, and slurmctld."""

from __future__ import annotations

from dataclasses import dataclass

from slurm.devcluster.daemons.program_launcher import Launcher, launcher
from slurm.devcluster.daemons.wait_conditions import answers
from slurm.devcluster.errors import DevclusterError
from slurm.devcluster.files import logs
from slurm.devcluster.files.folder import ClusterFolder
from slurm.devcluster.plan import ClusterPlan

_NAME = "slurmctld"


@dataclass(frozen=True)
class Controller:
    """The slurmctld of a cluster. Jobs continue while it is down."""

    folder: ClusterFolder
    plan: ClusterPlan

    def kill(self) -> None:
        """Kills it by SIGKILL. Changes of the last five seconds may be lost."""
        with launcher(self.folder) as work:
            if process := work.recorded(_NAME):
                process.kill_with_children()

    def start(self) -> None:
        """Starts it if it does not run.

        Raises:
            DevclusterError: it did not start; the text says what it said.
        """
        with launcher(self.folder) as work:
            self._start(work)

    def restart(self) -> None:
        """Shuts it down in order and starts it again.

        Raises:
            DevclusterError: it did not start; the text says what it said.
        """
        with launcher(self.folder) as work:
            if process := work.recorded(_NAME):
                process.stop()
            self._start(work)

    def _start(self, work: Launcher) -> None:
        try:
            if work.recorded(_NAME) is None:
                start_controller(work, self.plan)
            address, port = self.plan.controller_address, self.plan.controller_port
            work.wait(_NAME, lambda: answers(address, port), 30, "listening")
        except DevclusterError as error:
            raise DevclusterError(f"{error}\n{logs.telling(self.folder.logs)}") from error


def start_controller(work: Launcher, plan: ClusterPlan) -> None:
    """Starts slurmctld, which may not listen yet on return."""
    command = [_NAME, "-D", "-f", str(work.folder.slurm_conf)]
    work.launch(_NAME, on_bridge(work.folder, plan, command))


def on_bridge(folder: ClusterFolder, plan: ClusterPlan, command: list[str]) -> list[str]:
    """The command, so that Slurm's daemon in it listens on the cluster's bridge, if there is one:
    it listens where this machine's name leads."""
    if plan.network is None:
        return command
    see = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", see, str(folder.hosts), *command]


def start_munged(work: Launcher) -> None:
    folder = work.folder
    command = [
        *("munged", "--foreground", "--force", f"--socket={folder.munge_socket}"),
        *(f"--key-file={folder.key}", f"--pid-file={folder.run}/munged.pid"),
        *(f"--seed-file={folder.run}/munged.seed", f"--log-file={folder.logs}/munged.log"),
        "--num-threads=4",
    ]
    work.launch("munged", command)
    work.wait("munged", folder.munge_socket.exists)
