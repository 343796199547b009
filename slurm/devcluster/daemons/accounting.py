"""The accounting database: MariaDB, on a socket only, and slurmdbd in front of it."""

from __future__ import annotations

from slurm.devcluster.daemons.controller import on_bridge
from slurm.devcluster.daemons.program_launcher import Launcher
from slurm.devcluster.daemons.wait_conditions import answers
from slurm.devcluster.plan import ClusterPlan


def start(launcher: Launcher, plan: ClusterPlan) -> None:
    """Raises:
    DevclusterError: one of the two did not start.
    """
    folder = launcher.folder
    launcher.run(
        *("mariadb-install-db", "--no-defaults", f"--datadir={folder.database}"),
        *("--auth-root-authentication-method=socket", f"--auth-root-socket-user={plan.user}"),
        *("--skip-test-db", f"--user={plan.user}"),
        within_s=120,
    )
    launcher.launch(
        "mariadbd",
        [
            *("mariadbd", "--no-defaults", f"--datadir={folder.database}"),
            *(f"--socket={folder.database_socket}", "--skip-networking"),
            *(f"--pid-file={folder.run}/mariadbd.pid", f"--user={plan.user}"),
            # the database is deleted with the cluster, so nothing in it has to be durable
            *("--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"),
        ],
    )
    launcher.wait("mariadbd", lambda: _makes_database(launcher, plan))
    launcher.launch("slurmdbd", on_bridge(folder, plan, ["slurmdbd", "-D"]))
    launcher.wait("slurmdbd", lambda: answers(plan.controller_address, plan.accounting_port))


def _makes_database(launcher: Launcher, plan: ClusterPlan) -> bool:
    client = ("mariadb", "--no-defaults", f"--socket={launcher.folder.database_socket}")
    make = "CREATE DATABASE IF NOT EXISTS slurm"
    return launcher.attempt(*client, "-u", plan.user, "-e", make) is not None
