"""The commands of this folder; each is a script beside this file."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm.devcluster.cluster import Cluster, take_down
from slurm.devcluster.errors import DevclusterError
from slurm.devcluster.files.debian_packages import RELEASES, is_release, unpack
from slurm.devcluster.files.folder import VARIABLE, ClusterFolder
from slurm.devcluster.nodes.cluster_node import ClusterNode
from slurm.devcluster.options import FAKE_GPUS, MAX_NODES, ClusterOptions
from slurm.devcluster.plan import ClusterPlan

_HERE = Path(__file__).resolve().parent
_DEFAULT = ClusterOptions()
_NODE_VERBS: dict[str, Callable[[ClusterNode], None]] = {
    "kill": ClusterNode.kill,
    "start": ClusterNode.start,
    "cut": ClusterNode.cut,
    "lossy": ClusterNode.lossy,
    "heal": ClusterNode.heal,
    "kill-daemon": ClusterNode.kill_daemon,
    "drain": ClusterNode.drain,
    "resume": ClusterNode.resume,
}


def up(words: Sequence[str]) -> None:
    parser = _parser("up", "Start a Slurm of several nodes on this machine.")
    _add_options(parser)
    chosen = parser.parse_args(words)
    options = ClusterOptions(
        nodes=chosen.nodes,
        gpus=chosen.gpus,
        cpus=chosen.cpus,
        memory_mib=chosen.memory,
        form=chosen.form,
        accounting=chosen.accounting,
        grace_s=chosen.grace,
        slurmd_timeout_s=chosen.slurmd_timeout,
        cred_expire_s=chosen.cred_expire,
        user_signal=not chosen.no_user_signal,
        tracking=chosen.tracking,
        slurm=_slurm(chosen.slurm),
        private=tuple(chosen.private),
        settings=tuple(chosen.set),
    )
    begin = time.monotonic()
    cluster = Cluster.up(chosen.folder, options)
    lead = shlex.join([str(_HERE / "env"), *_folder_option(cluster.folder)])
    print(
        f"{_described(cluster.plan)}, idle after {time.monotonic() - begin:.1f} s\n"
        f'lead a shell to it: eval "$({lead})"'
    )


def down(words: Sequence[str]) -> None:
    parser = _parser("down", "End and remove a cluster, whatever became of it.")
    parser.add_argument("--keep-logs", type=Path, metavar="D", help="move its logs to a new folder")
    chosen = parser.parse_args(words)
    folder = ClusterFolder.named(chosen.folder)
    if strange := take_down(folder, chosen.keep_logs):
        print(f"{folder.path} stays: {', '.join(strange)} in it is not the cluster's")


def node(words: Sequence[str]) -> None:
    parser = _parser("node", "What can happen to a node, and a command on it.")
    parser.add_argument("verb", choices=(*_NODE_VERBS, "part", "exec"))
    parser.add_argument("name")
    parser.add_argument("other", nargs="?")
    parser.usage = (
        "node VERB NAME [--folder D], node part NAME OTHER [--folder D],"
        " node exec NAME [--folder D] -- COMMAND ..."
    )
    own, command = _split(words)
    chosen = parser.parse_args(own)
    if (chosen.verb == "exec") != bool(command):
        parser.error("exec, and nothing else, takes a command: node exec NAME -- COMMAND ...")
    if (chosen.verb == "part") != (chosen.other is not None):
        parser.error("part, and nothing else, takes another node: node part NAME OTHER")
    cluster = Cluster.at(chosen.folder)
    target = cluster.node(chosen.name)
    if chosen.verb == "part":
        target.part(cluster.node(chosen.other))
        return
    if chosen.verb == "exec":
        _become(target.command(command), cluster)
    _NODE_VERBS[chosen.verb](target)


def controller(words: Sequence[str]) -> None:
    parser = _parser("controller", "What can happen to slurmctld.")
    parser.add_argument("verb", choices=("kill", "start", "restart"))
    chosen = parser.parse_args(words)
    target = Cluster.at(chosen.folder).controller
    verbs = {"kill": target.kill, "start": target.start, "restart": target.restart}
    verbs[chosen.verb]()


def shell(words: Sequence[str]) -> None:
    parser = _parser("shell", "A shell whose Slurm commands go to the cluster.")
    cluster = Cluster.at(parser.parse_args(words).folder)
    _become([os.environ.get("SHELL") or "/bin/sh"], cluster)


def env(words: Sequence[str]) -> None:
    parser = _parser("env", 'Lines for a shell to evaluate: eval "$(env)".')
    cluster = Cluster.at(parser.parse_args(words).folder)
    for key, value in cluster.variables.items():
        print(f"export {key}={shlex.quote(value)}")


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "up": up,
    "down": down,
    "node": node,
    "controller": controller,
    "shell": shell,
    "env": env,
}


def main(name: str, words: Sequence[str]) -> int:
    """Runs the command `name` and returns its exit status."""
    try:
        COMMANDS[name](words)
    except DevclusterError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser(name: str, what: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, description=what, allow_abbrev=False)
    where = f"of the cluster (default: ${VARIABLE}, else ~/.hpckit-devcluster)"
    parser.add_argument("--folder", type=Path, metavar="D", help=where)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    def number(name: str, default: int | None, text: str) -> None:
        shown = "as this machine" if default is None else str(default)
        parser.add_argument(
            name, type=int, default=default, metavar="N", help=f"{text} (default: {shown})"
        )

    number("--nodes", _DEFAULT.nodes, f"nodes, up to {MAX_NODES}")
    number("--gpus", _DEFAULT.gpus, f"GPUs that each node claims to have, up to {len(FAKE_GPUS)}")
    number("--cpus", _DEFAULT.cpus, "CPUs that each node claims to have")
    number("--memory", _DEFAULT.memory_mib, "MiB that each node claims to have")
    number("--grace", _DEFAULT.grace_s, "seconds from a preemption's signal to the end")
    number("--slurmd-timeout", _DEFAULT.slurmd_timeout_s, "seconds of silence until a node is down")
    parser.add_argument("--form", choices=("ports", "namespaces"), default=_DEFAULT.form)
    parser.add_argument("--accounting", action="store_true", help="have sacct work, by MariaDB")
    parser.add_argument(
        "--cred-expire",
        type=lambda text: None if text == "default" else int(text),
        default=_DEFAULT.cred_expire_s,
        metavar="N",
        help="seconds that a requeued job waits; or default, which is Slurm's 120 (default: 5)",
    )
    parser.add_argument(
        "--no-user-signal",
        action="store_true",
        help="preempted jobs get SIGTERM, Slurm's default, and not the signal of --signal",
    )
    parser.add_argument(
        "--tracking",
        choices=("auto", "cgroup", "linuxproc"),
        default=_DEFAULT.tracking,
        help="of jobs' processes; auto: by cgroups where they can be had",
    )
    parser.add_argument(
        "--slurm",
        metavar="S",
        help=f"another Slurm than this machine's: {' or '.join(RELEASES)}, downloaded from Debian "
        "once, or a folder with bin and sbin",
    )
    parser.add_argument(
        "--private",
        action="append",
        default=[],
        metavar="D",
        help="a folder of this machine that each node has of its own; may be repeated",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="Key=Value",
        help="of slurm.conf, in place of the line with this key; may be repeated",
    )


def _slurm(given: str | None) -> str | None:
    """Returns the folder of the chosen Slurm."""
    if given is None:
        return None
    if is_release(given):
        return str(unpack(given))
    folder = Path(given).absolute()
    if not (folder / "sbin").is_dir():
        raise DevclusterError(
            f"--slurm {given}: not a folder with bin and sbin; give one, or {' or '.join(RELEASES)}"
        )
    return str(folder)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the words before the first `--` and those after it."""
    found = list(words)
    at = found.index("--") if "--" in found else len(found)
    return found[:at], found[at + 1 :]


def _described(plan: ClusterPlan) -> str:
    tracked = "cgroups" if plan.has_cgroups else "linuxproc"
    names = f"{plan.nodes[0].name} to {plan.nodes[-1].name}"
    version = f"{plan.version[0]}.{plan.version[1]:02}"
    return f"Slurm {version}: {len(plan.nodes)} nodes, {names}, processes tracked by {tracked}"


def _folder_option(folder: ClusterFolder) -> list[str]:
    return [] if folder == ClusterFolder.named(None) else ["--folder", str(folder.path)]


def _become(command: Sequence[str], cluster: Cluster) -> None:
    path = shutil.which(command[0])
    if path is None:
        raise DevclusterError(f"{command[0]}: no such command on this machine")
    sys.stdout.flush()
    os.execve(path, list(command), cluster.env)
