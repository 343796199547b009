"""The kinds of cluster: of any user, with accounting, with nodes that are machines of their own."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from slurm.devcluster import tools
from slurm.devcluster.daemons.program_launcher import Launcher, launcher
from slurm.devcluster.errors import DevclusterError
from slurm.devcluster.nodes.cluster_node import check_reach
from slurm.devcluster.options import Form
from tests.cluster import guard, traces
from tests.cluster.conftest import need, options
from tests.cluster.slurm import Slurm, wait_for

_PACKAGE = Path(tools.__file__).parents[1]


@dataclass(frozen=True)
class User:
    """One without privileges, who has a folder with nothing but the package in it."""

    name: str
    home: Path

    @classmethod
    def in_folder(cls, home: Path) -> User:
        known = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        shutil.copytree(_PACKAGE, home / "slurm")
        shutil.chown(home, known.pw_uid)
        return cls(known.pw_name, home)

    def run(self, *words: str) -> str:
        """Raises:
        AssertionError: it failed.
        """
        is_other = os.geteuid() == 0
        done = subprocess.run(
            words,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home)},
            user=self.name if is_other else None,
            group=pwd.getpwnam(self.name).pw_gid if is_other else None,
            extra_groups=[] if is_other else None,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def call(self, name: str, *words: str) -> str:
        """Run a script of the package."""
        return self.run(f"{self.home}/slurm/devcluster/{name}", *words)

    def need_python(self) -> None:
        """Skip the test where this user has no Python that is new enough."""
        try:
            self.run("python3", "-c", "import sys; assert sys.version_info >= (3, 11)")
        except (AssertionError, PermissionError) as error:
            pytest.skip(f"{self.name} cannot run a python3 that is 3.11 or newer: {error}")


def test_a_user_without_privileges_has_the_ports_form() -> None:
    need("ports")
    with tempfile.TemporaryDirectory() as place:
        user = User.in_folder(Path(place))
        user.need_python()
        with guard.guarded(user.home / ".hpckit-devcluster"):
            user.call("up", "--nodes", "2")
            seen = user.run("sh", "-c", f"{user.call('env')}\nsrun --nodes=2 id -un")
            assert seen.split() == [user.name] * 2
            user.call("node", "kill", "n2")
            user.call("node", "start", "n2")
            user.call("down")
        assert traces.processes(place) == []
        assert sorted(path.name for path in user.home.iterdir()) == ["slurm"]


@pytest.mark.parametrize("form", ["ports", "namespaces"])
def test_accounting_remembers_jobs_and_tells_the_controller(form: Form, tmp_path: Path) -> None:
    need(form, accounting=True)
    chosen = replace(options(form, nodes=1), accounting=True)
    with guard.cluster(tmp_path / "c", chosen) as cluster:
        slurm = Slurm(cluster)
        slurm.run("srun", "--mem=50", "--gpus-per-node=2", "true")
        slurm.run("sacctmgr", "--immediate", "add", "qos", "urgent")
        sacct = ("sacct", "--noheader", "--parsable2", "--format=State,AllocTRES")
        done = r"^COMPLETED\|.*\bgres/gpu=2\b"
        wait_for(lambda: re.search(done, slurm.run(*sacct), re.M) is not None, "the job")
        show = ("scontrol", "show", "assoc_mgr", "flags=qos")
        wait_for(lambda: "QOS=urgent(" in slurm.run(*show), "the controller knows of it")
    assert traces.of(cluster) == []


def test_nodes_with_namespaces_are_machines_of_their_own(namespaces: Slurm) -> None:
    names = [node.name for node in namespaces.cluster.nodes]
    address = f"getent hosts {names[0]} | cut -d' ' -f1"
    program = f"hostname; ls /dev/shm; touch /dev/shm/mine; {address}"
    seen = namespaces.run("srun", "--nodes=3", "--label", "sh", "-c", program)
    lines = {line.partition(": ")[2] for line in seen.splitlines()}
    assert lines == {*names, namespaces.cluster.node(names[0]).address}
    assert not Path("/dev/shm/mine").exists()


def test_nodes_that_do_not_reach_each_other_are_told(namespaces: Slurm) -> None:
    plan = namespaces.cluster.plan
    first, last = plan.nodes[0], plan.nodes[-1]

    def isolate(work: Launcher, state: str) -> None:
        for node in (first, last):
            link = plan.link(node)
            assert link is not None
            work.run("ip", "link", "set", link, "type", "bridge_slave", "isolated", state)

    with launcher(namespaces.cluster.folder) as work:
        isolate(work, "on")
        with pytest.raises(
            DevclusterError, match=f"{first.name} does not reach {last.name}: a firewall"
        ):
            check_reach(work, plan, within_s=1)
        isolate(work, "off")
        check_reach(work, plan)
