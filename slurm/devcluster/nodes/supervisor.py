"""The first process of a node: it sets the node up, runs its slurmd, and reaps every orphan.

So everything that runs on the node is below it, daemonised or not. It never ends by itself: whoever
kills the node kills what is below, then this; in namespaces of their own, the kernel does. SIGHUP
starts slurmd again. It runs as a process of its own; the arguments are the cluster's folder and the
name of the node.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from slurm.devcluster.daemons.wait_conditions import wait_until
from slurm.devcluster.files.folder import ClusterFolder
from slurm.devcluster.plan import ClusterPlan, NodePlan

_PR_SET_CHILD_SUBREAPER = 36
_HELD = {signal.SIGCHLD, signal.SIGHUP}


def main() -> None:
    folder = ClusterFolder(Path(sys.argv[1]))
    plan = ClusterPlan.read(folder.plan)
    node = plan.node(sys.argv[2])
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    if plan.network:
        _set_up(folder, node, plan.options.private)
    elif ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("this kernel lets no process take in orphans")
    Path(folder.spool, node.name).mkdir(exist_ok=True)
    slurmd = ["slurmd", "-D", "-N", node.name, "-f", str(folder.slurm_conf)]
    if plan.options.slurm:  # it would look where its packages put it
        slurmd += ["-d", f"{plan.options.slurm}/sbin/slurmstepd"]
    _supervise(slurmd)


def _supervise(slurmd: list[str]) -> NoReturn:
    daemon = _start(slurmd)
    while True:
        if signal.sigwait(_HELD) == signal.SIGHUP and daemon.poll() is not None:
            daemon = _start(slurmd)
        daemon.poll()
        _reap_all_but(daemon.pid)


def _start(slurmd: list[str]) -> subprocess.Popen[bytes]:
    def release() -> None:  # safe here: this process has one thread
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)

    return subprocess.Popen(slurmd, preexec_fn=release, start_new_session=True)


def _reap_all_but(pid: int) -> None:
    """Popen reaps its own."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == pid:
            return
        os.waitpid(ended.si_pid, 0)


def _set_up(folder: ClusterFolder, node: NodePlan, private: Sequence[str]) -> None:
    """Sets up host name, /proc, /etc/hosts, folders and network in new namespaces."""
    socket.sethostname(node.name)
    _run("mount", "--make-rprivate", "/")
    _run("mount", "-t", "proc", "proc", "/proc")
    _run("mount", "--bind", str(folder.hosts), "/etc/hosts")
    _run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    for path in private:
        _run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", path)
    _run("ip", "link", "set", "lo", "up")
    if not wait_until(lambda: "eth0:" in Path("/proc/net/dev").read_text(), 20, every_s=0.005):
        sys.exit(f"{node.name}: no network cable was plugged in within 20 s")
    _run("ip", "addr", "add", f"{node.address}/24", "dev", "eth0")
    _run("ip", "link", "set", "eth0", "up")


def _run(*command: str) -> None:
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with status {done.returncode}: {done.stderr}")


if __name__ == "__main__":
    main()
