"""Rules for the cluster config of a site, as pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpckit.config.spec import ContainerSpec, SlurmSpec
from hpckit.text.slurm_times import limit_seconds

_OPTION = re.compile(r"[a-z][a-z0-9-]*")
# Options of sbatch that other keys set.
_KEYS = {
    **{"partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint"},
    **{"reservation": "reservation", "exclude": "exclude", "time": "time_limit"},
    **{"signal": "notice_s", "gpus-per-node": "gpus", "gres": "gpus", "mem": "memory"},
    **{"cpus-per-task": "cpus_per_node", "exclusive": "exclusive"},
}
_OWN_OPTIONS = {
    "nodes",
    "job-name",
    "output",
    "error",
    "open-mode",
    "requeue",
    "no-requeue",
    "dependency",
}
_OWN_OPTIONS |= {
    "ntasks",
    "ntasks-per-node",
    "array",
    "wrap",
    "chdir",
    "export",
    "no-kill",
    "parsable",
}

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SET_BY_KEY = {
    "NCCL_SOCKET_IFNAME": "cluster.slurm.interface",
    "GLOO_SOCKET_IFNAME": "cluster.slurm.interface",
    "OMP_NUM_THREADS": "launch.threads_per_worker",
}
_RANKS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_SET_BY_HPCKIT = {
    *("CUDA_VISIBLE_DEVICES", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED"),
    *_RANKS,
}
_PREFIXES = ("HPCKIT_", "SLURM_", "SUBMITIT_", "TORCHELASTIC_")


def site_violations(slurm: SlurmSpec) -> Iterator[str]:
    """Yields all problems of `slurm`, one line each, the key first."""
    for option in sorted(slurm.options):
        key = f"cluster.slurm.options.{option}"
        if option in _KEYS:
            yield f"{key}: use cluster.slurm.{_KEYS[option]} instead"
        elif problem := option_problem(option):
            yield f"{key}: {problem}"
    if slurm.time_limit is not None and slurm.notice_s >= limit_seconds(slurm.time_limit):
        yield (
            f"cluster.slurm.notice_s: {slurm.notice_s} seconds before the end leave no time to "
            f"train in a job of cluster.slurm.time_limit={slurm.time_limit}: raise the time limit, "
            "or lower the notice"
        )
    for name in sorted(slurm.env):
        if problem := _variable(name):
            yield f"cluster.slurm.env.{name}: {problem}"
    for name in slurm.pass_environment:
        if problem := _passed(name):
            yield f"cluster.slurm.pass_environment: {name} {problem}"
    if slurm.suspects is not None and slurm.suspects.group and slurm.suspects.folder is None:
        yield (
            "cluster.slurm.suspects.group: the members of a group need a folder that all of them "
            "reach: set cluster.slurm.suspects.folder"
        )
    if slurm.container is not None:
        yield from _container(slurm.container)


def option_problem(option: str) -> str | None:
    """Returns why a further option of sbatch cannot be given, or None if it can."""
    if option in _OWN_OPTIONS:
        return "hpckit sets this option itself"
    if not _OPTION.fullmatch(option):
        return "use the long name of an sbatch option, without leading dashes"
    return None


def _variable(name: str) -> str | None:
    if not _VARIABLE.fullmatch(name):
        return "is not a valid name of an environment variable; use letters, digits and _"
    if name in _SET_BY_KEY:
        return f"use {_SET_BY_KEY[name]} instead"
    if name in _SET_BY_HPCKIT or name.startswith(_PREFIXES):
        return "hpckit, torchrun or Slurm sets this variable itself"
    return None


def _passed(name: str) -> str | None:
    if not _VARIABLE.fullmatch(name):
        return "is not a valid name of an environment variable; use letters, digits and _"
    if name.startswith("SBATCH_"):
        return "is an option of sbatch; use a key of cluster.slurm, or cluster.slurm.options"
    if name.startswith(("HPCKIT_", "SUBMITIT_", "TORCHELASTIC_")) or name in _RANKS:
        return "is set by hpckit, submitit or torchrun for its own processes"
    return None


def _container(container: ContainerSpec) -> Iterator[str]:
    key = "cluster.slurm.container"
    if container.image.startswith("-"):
        yield (
            f"{key}.image: {container.image!r} would be read as an option; it must not begin with "
            "a dash"
        )
    if container.kind == "pyxis":
        for word in container.options:
            if not word.startswith("--container-"):
                yield (
                    f"{key}.options: {word!r} is not an option of pyxis, such as "
                    "--container-writable"
                )
