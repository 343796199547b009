"""One node of a cluster, and the faults that can be caused on it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm.devcluster import tools
from slurm.devcluster.daemons.processes import Process, everyone
from slurm.devcluster.daemons.program_launcher import Launcher, launcher, python
from slurm.devcluster.daemons.wait_conditions import answers, wait_until
from slurm.devcluster.errors import DevclusterError
from slurm.devcluster.files.folder import ClusterFolder
from slurm.devcluster.nodes import network
from slurm.devcluster.plan import ClusterPlan, NodePlan

_LOSS = 10  # percent
_SLURM_PROGRAMS = ("slurmd", "slurmstepd")
PREFIX = "node-"  # of the records of nodes' first processes


@dataclass(frozen=True)
class ClusterNode:
    """A node. Every method may be called in every state of the node."""

    folder: ClusterFolder
    plan: ClusterPlan
    node: NodePlan

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def address(self) -> str:
        return self.node.address

    def kill(self) -> None:
        """Simulates a power failure: slurmd and all processes of the node end immediately.

        In the namespaces form its network is removed first, so that no peer is notified. In the
        ports form the kernel closes the connections of what it kills, which peers notice.
        """
        with launcher(self.folder) as work:
            destroy(work, self.plan, self.node)

    def kill_daemon(self) -> None:
        """Kills slurmd by SIGKILL; jobs on the node continue."""
        with launcher(self.folder) as work:
            for daemon in _daemons(work.recorded(_record(self.node))):
                daemon.kill()

    def start(self) -> None:
        """Switches the node on: its slurmd runs and listens, restarted if it was killed.

        Raises:
            DevclusterError: it did not start; the message has its output.
        """
        with launcher(self.folder) as work:
            first = work.recorded(_record(self.node))
            if first is None:
                boot(work, self.plan, self.node)
            elif not _daemons(first):
                first.send(signal.SIGHUP)
            if not self._is_cut():
                self._wait(work)

    def cut(self) -> None:
        """Unplugs the network cable: packets are lost silently.

        Raises:
            DevclusterError: it has no cable.
        """
        self._switch("down")

    def lossy(self) -> None:
        """Makes the cable lose a tenth of the packets in each direction.

        Raises:
            DevclusterError: it has no cable, or is not up.
            MissingToolError: nft is not installed.
        """
        self._cable()
        tools.check(tools.LOSS)
        with launcher(self.folder) as work:
            network.lose(work, self._first(work).pid, _LOSS)

    def part(self, other: ClusterNode) -> None:
        """Makes a partition between it and another node: all other nodes reach both.

        Raises:
            DevclusterError: it has no cable, is not up, or is that node.
            MissingToolError: nft is not installed.
        """
        self._cable()
        tools.check(tools.LOSS)
        if other.name == self.name:
            raise DevclusterError(f"{self.name} cannot be parted from itself: name another node")
        with launcher(self.folder) as work:
            network.part(work, self._first(work).pid, other.address)

    def heal(self) -> None:
        """Undoes `cut`, `lossy` and `part`.

        Raises:
            DevclusterError: it has no cable.
        """
        self._switch("up")
        if tools.are_there(tools.LOSS):
            with launcher(self.folder) as work:
                network.lose_none(work, self._first(work).pid)

    def drain(self) -> None:
        """Drains the node as an operator does: no other job gets it.

        Raises:
            DevclusterError: slurmctld does not answer, or refuses.
        """
        with launcher(self.folder) as work:
            work.run("scontrol", "update", f"NodeName={self.name}", "State=DRAIN", "Reason=drill")

    def resume(self) -> None:
        """Undoes `drain`. Does nothing if the node is not drained, because a slurmctld that was
        killed may have forgotten it. Raises as `drain`."""
        with launcher(self.folder) as work:
            state = work.run("scontrol", "--oneliner", "show", "node", self.name)
            if re.search(r" State=\S*DRAIN", state):
                work.run("scontrol", "update", f"NodeName={self.name}", "State=RESUME")

    def is_up(self) -> bool:
        """Returns whether the node has power; its slurmd may be dead and its network cut."""
        with launcher(self.folder) as work:
            return work.recorded(_record(self.node)) is not None

    def command(self, words: Sequence[str]) -> list[str]:
        """Returns the command that runs these words on the node, in the caller's working directory.

        In the ports form, the node is this machine.

        Raises:
            DevclusterError: the node is not up.
        """
        with launcher(self.folder) as work:
            first = self._first(work)
        if self.plan.network is None:
            return list(words)
        enter = ("nsenter", f"--target={first.pid}", "--net", "--uts", "--mount", "--pid", "--ipc")
        return [*enter, "--", "env", f"--chdir={Path.cwd()}", *words]

    def _first(self, work: Launcher) -> Process:
        first = work.recorded(_record(self.node))
        if first is None:
            raise DevclusterError(f"{self.name} is not up: start it")
        return first

    def _wait(self, work: Launcher) -> None:
        address, port = self.node.address, self.node.port
        try:
            work.wait(_record(self.node), lambda: answers(address, port), 30, "listening")
        except DevclusterError as error:
            logs = f"{self.folder.slurmd_log(self.name)}, {_record(self.node)}.out"
            raise DevclusterError(f"{error}; see {logs}") from error

    def _switch(self, state: str) -> None:
        with launcher(self.folder) as work:
            network.switch(work, self._cable(), state)

    def _is_cut(self) -> bool:
        return self.plan.network is not None and network.is_switched_off(self._cable())

    def _cable(self) -> str:
        link = self.plan.link(self.node)
        if link is None:
            raise DevclusterError(
                f"{self.name} has no network of its own to cut or heal: nodes of the ports form "
                "share this machine's, and to stop its processes would be something else. Take "
                "the namespaces form: up --form namespaces, as root"
            )
        return link


def boot(work: Launcher, plan: ClusterPlan, node: NodePlan) -> None:
    """Starts a node that is not up; its slurmd may not listen yet.

    Raises:
        DevclusterError: it did not start.
    """
    _end_strays(work, plan, node)
    network.unplug(work, plan, node)
    supervisor = python("slurm.devcluster.nodes.supervisor", str(work.folder.path), node.name)
    has_own = plan.network is not None
    first = work.launch(_record(node), supervisor, namespaces=has_own)
    network.plug(work, plan, node, first.pid)


def destroy(work: Launcher, plan: ClusterPlan, node: NodePlan) -> None:
    """Ends all processes of a node.

    Raises:
        DevclusterError: something did not end.
    """
    name, link = _record(node), plan.link(node)
    if first := work.recorded(name):
        if link is not None and network.has_link(link):
            network.switch(work, link, "down")
        end(first, all_below=plan.network is None)
    _end_strays(work, plan, node)
    work.forget(name)
    network.unplug(work, plan, node)


def end(first: Process, *, all_below: bool) -> None:
    """Kills a process of a node.

    Args:
        all_below: what is below does not end by itself with it.

    Raises:
        DevclusterError: something did not end.
    """
    if all_below and not first.kill_all_below():
        left = ", ".join(str(process.pid) for process in first.below())
        raise DevclusterError(f"processes {left} of a node do not end, though they were killed")
    first.kill()
    if first.is_alive():
        raise DevclusterError(f"process {first.pid} of a node does not end, though it was killed")


def check_reach(work: Launcher, plan: ClusterPlan, within_s: float = 10) -> None:
    """Raises:
    DevclusterError: the nodes of the namespaces form do not reach each other.
    """
    first, last = plan.nodes[0], plan.nodes[-1]
    process = work.recorded(_record(first))
    if plan.network is None or process is None:
        return
    # tried more than once, because Linux remembers for seconds that a host was unreachable
    if not wait_until(lambda: network.leads(work, process.pid, last), within_s):
        raise DevclusterError(
            f"{first.name} does not reach {last.name}: a firewall of this machine takes what its "
            "bridges carry, as that of Docker does. Run iptables -I FORWARD -i 'hpckit+' -j ACCEPT "
            "as root, or take the ports form"
        )


def _end_strays(work: Launcher, plan: ClusterPlan, node: NodePlan) -> None:
    """Ends what has outlived the first process of a node; in the namespaces form nothing does."""
    if plan.network is None:
        for stray in _strays_of(work.folder.slurmd_log(node.name)):
            end(stray, all_below=True)


def _daemons(first: Process | None) -> list[Process]:
    below: Iterable[Process] = first.below() if first else ()
    return [process for process in below if process.program() == "slurmd"]


def _record(node: NodePlan) -> str:
    return f"{PREFIX}{node.name}"


def _strays_of(log: Path) -> list[Process]:
    """Returns the processes of Slurm that write this log, which is one node's. They are left when
    the node's first process was killed, perhaps with every other Python."""
    return [
        process
        for _, process in everyone()
        if process.program() in _SLURM_PROGRAMS and process.has_open(log.resolve())
    ]
