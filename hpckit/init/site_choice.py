"""Chooses the keys of a site's file from the facts about the site. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from hpckit.config.spec_parser import SpecError
from hpckit.doctor.machine import MachineFacts
from hpckit.init.site_facts import SiteFacts, SlurmAccounts
from hpckit.slurm.cluster_config import (
    GpuKind,
    Record,
    describe_gpus,
    gpu_kinds,
    gpu_kinds_of_nodes,
    grace_of,
    has_cons_tres,
)
from hpckit.text.quantities import count
from hpckit.text.slurm_times import format_time, parse_time

SCRATCH_BYTES = 20 << 30
"""Free bytes below which a disk is too small for code snapshots and compilers' caches."""
_FAST = ("ib", "hsn")
_PYXIS = "{kind: pyxis, image: registry#name:tag, mounts: [], python: null, options: []}"
_APPTAINER = "{kind: apptainer, image: /path/train.sif, mounts: [], python: null, options: []}"

Value = str | int | bool | None | tuple[str, ...]


@dataclass(frozen=True)
class SiteKey:
    """A key of `cluster` or `cluster.slurm` with its value and the reason for it."""

    name: str
    value: Value
    how: Literal["found", "assumed"]
    """Whether the value was read from the site, or has to be checked by somebody who knows the
    site."""
    why: str
    is_slurm: bool = True


@dataclass(frozen=True)
class SiteRequest:
    """The user's choices."""

    partition: str | None = None
    account: str | None = None


@dataclass(frozen=True)
class SiteChoice:
    """The content of the file."""

    keys: tuple[SiteKey, ...]
    partition: str
    gpus: GpuKind | None
    """The kind of GPUs of a node."""


def choose_site(
    facts: SiteFacts,
    machine: MachineFacts,
    on_node: bool,
    wanted: SiteRequest,
    env: Mapping[str, str] = MappingProxyType({}),
) -> SiteChoice:
    """Choose the keys of a site.

    Args:
        env: the environment of the shell that describes the site.
        machine: the facts of a node, or of this machine if no node was inspected.
        on_node: whether `machine` is a node.

    Raises:
        SpecError: a choice of the user does not exist, or the partition is ambiguous.
    """
    partition, why = partition_of(facts, wanted.partition)
    name = partition["PartitionName"]
    mine = [node for node in facts.nodes if name in node.get("Partitions", "").split(",")]
    kinds = gpu_kinds_of_nodes(mine)
    gpus = kinds[0][0] if kinds else None
    alike = [node for node in mine if gpus is None or gpus in gpu_kinds(node.get("Gres", ""))]
    keys = [
        _grace(name, partition, facts.config),
        SiteKey("partition", name, "found" if wanted.partition else "assumed", why),
        *_accounts(facts.accounts, wanted.account),
        *_features(alike),
        _time_limit(partition, facts),
        *_gpus(kinds, facts.config),
        _cpus(partition, alike),
        _memory(partition, alike),
        *_exclusive(partition),
        *_of_machine(machine, on_node),
        _container(facts.has_pyxis, machine, on_node),
        *_setup(env),
    ]
    return SiteChoice(tuple(keys), name, gpus)


def partition_of(facts: SiteFacts, wanted: str | None) -> tuple[Record, str]:
    """Return the partition and the reason: the default, unless only others have GPUs. A hidden
    partition is taken only if it is wanted by name."""
    shown = [one for one in facts.partitions if one.get("Hidden") != "YES"]
    names = {one.get("PartitionName", ""): one for one in shown}
    there = ", ".join(names)
    if wanted is not None:
        every = {one.get("PartitionName", ""): one for one in facts.partitions}
        if wanted not in every:
            raise SpecError(
                [f"--partition {wanted}: not found; the partitions are {there or 'none'}"]
            )
        return every[wanted], "given as an option"
    default = next((one for one in shown if one.get("Default") == "YES"), None)
    with_gpus = [one for one in shown if nodes_with_gpus(one, facts.nodes)]
    if default is not None and (default in with_gpus or not with_gpus):
        return default, "the site's default" + _others(names, default["PartitionName"])
    if not with_gpus:
        raise SpecError([f"there is no default partition: give --partition, one of {there}"])
    best = max(with_gpus, key=lambda one: nodes_with_gpus(one, facts.nodes))
    why = "the default has no GPUs; of the partitions with GPUs, this one has the most nodes"
    return best, why + _others(names, best["PartitionName"])


def nodes_with_gpus(partition: Record, nodes: Sequence[Record]) -> int:
    """Return the number of nodes of the partition with GPUs; 0 while the partition is not up."""
    name = partition.get("PartitionName")
    return sum(
        name in node.get("Partitions", "").split(",") and bool(gpu_kinds(node.get("Gres", "")))
        for node in nodes
        if partition.get("State", "UP") == "UP"
    )


def _grace(name: str, partition: Record, config: Record) -> SiteKey:
    grace = grace_of(partition, config)
    if grace is None:
        why = f"jobs of {name} are not preempted; drills use this time"
        return SiteKey("grace_s", 60, "assumed", why, is_slurm=False)
    if grace.is_suspension:
        why = f"{grace.source}: a preempted job of {name} is stopped and gets no signal"
        return SiteKey("grace_s", 60, "assumed", why, is_slurm=False)
    if grace.usable_s is None:
        why = f"{grace.source}, see sacctmgr show qos format=Name,GraceTime,PreemptMode"
        return SiteKey("grace_s", 60, "assumed", why, is_slurm=False)
    why = f"{grace.source}={grace.seconds} of {name}, less the time that Slurm needs"
    return SiteKey("grace_s", grace.usable_s, "found", why, is_slurm=False)


def _accounts(accounts: SlurmAccounts | None, wanted: str | None) -> Iterator[SiteKey]:
    if wanted is not None:
        yield SiteKey("account", wanted, "found", "given as an option")
    elif accounts is None:
        yield SiteKey("account", None, "assumed", "sacctmgr lists none for you")
    else:
        why = "your default account" + _others(accounts.names, accounts.default)
        yield SiteKey("account", accounts.default, "found", why)
    if accounts is not None:
        usual = accounts.default_qos
        why = f"{usual} is your default" if usual else "you have no default QOS"
        yield SiteKey("qos", None, "found", why + _others(accounts.qos, usual))


def _features(nodes: Sequence[Record]) -> Iterator[SiteKey]:
    found = {f for node in nodes for f in node.get("AvailableFeatures", "(null)").split(",")}
    if names := sorted(found - {"(null)", ""}):
        yield SiteKey(
            "constraint", None, "found", f"its nodes have the features {', '.join(names)}"
        )


def _time_limit(partition: Record, facts: SiteFacts) -> SiteKey:
    limits = {"MaxTime of the partition": partition.get("MaxTime", "")}
    qos = facts.accounts.default_qos if facts.accounts else None
    if qos is not None and qos in facts.walls:
        limits[f"MaxWall of your QOS {qos}"] = facts.walls[qos]
    times = {why: parse_time(limit) for why, limit in limits.items()}
    given = {why: seconds for why, seconds in times.items() if seconds is not None}
    if not given:
        usual = partition.get("DefaultTime", "NONE")
        return SiteKey(
            "time_limit", None, "found", f"there is no limit; Slurm's default is {usual}"
        )
    why = min(given, key=given.__getitem__)
    return SiteKey("time_limit", format_time(given[why]), "found", why)


def gpu_option(config: Record) -> str:
    """Return the option of sbatch that requests GPUs, as a value of `cluster.slurm.gpus`."""
    return "gpus-per-node" if has_cons_tres(config) else "gres"


def _gpus(kinds: Sequence[tuple[GpuKind, int]], config: Record) -> Iterator[SiteKey]:
    if not kinds:
        yield SiteKey(
            "gpus", "none", "assumed", "its nodes have no gres gpu, so none are requested"
        )
        return
    there = ", ".join(f"{describe_gpus(kind)} on {count(number, 'node')}" for kind, number in kinds)
    select = config.get("SelectType", "")
    yield SiteKey(
        "gpus", gpu_option(config), "found", f"{there}; {select or 'its SelectType is unknown'}"
    )
    types = {kind for (kind, _), _ in kinds}
    if len(types) > 1:
        yield SiteKey("gpu_type", kinds[0][0][0] or None, "assumed", "most nodes have this one")


def _cpus(partition: Record, nodes: Sequence[Record]) -> SiteKey:
    counts = [_number(node.get("CPUEfctv") or node.get("CPUTot", "")) for node in nodes]
    most = _least([*counts, _number(partition.get("MaxCPUsPerNode", ""))])
    return SiteKey("cpus_per_node", most, *_whole(most, "CPUs"))


def _memory(partition: Record, nodes: Sequence[Record]) -> SiteKey:
    sizes = []
    for node in nodes:
        mib = _number(node.get("RealMemory", ""))
        sizes.append(mib and mib - (_number(node.get("MemSpecLimit", "")) or 0))
    most = _least([*sizes, _number(partition.get("MaxMemPerNode", ""))])
    most = most if most is not None and most > 1 else None  # 1 means that it was not configured
    return SiteKey("memory", most and f"{most}M", *_whole(most, "memory"))


def _whole(most: int | None, what: str) -> tuple[Literal["found", "assumed"], str]:
    if most is None:
        return "assumed", f"Slurm does not report the {what} of a node"
    return "found", f"all {what} of its smallest node; less for a part of one"


def _exclusive(partition: Record) -> Iterator[SiteKey]:
    # the second one is of Slurm 26.05
    if partition.get("OverSubscribe") == "EXCLUSIVE" or partition.get("Exclusive") == "NODE":
        yield SiteKey("exclusive", True, "found", "the partition allocates whole nodes")


def _of_machine(machine: MachineFacts, on_node: bool) -> Iterator[SiteKey]:
    where, how = _where(machine, on_node)
    fast = sorted(name for name in machine.interfaces if name.startswith(_FAST))
    if fast:
        yield SiteKey("interface", fast[0], how, where)
    else:
        there = ", ".join(machine.interfaces) or "none"
        why = f"no {' or '.join(_FAST)} {where}; NCCL and gloo choose one of {there}"
        yield SiteKey("interface", None, how, why)
    disks = [disk for disk in machine.scratch if disk.free_bytes >= SCRATCH_BYTES]
    if disks:
        free = f"{disks[0].free_bytes >> 30:,} GiB are free"
        yield SiteKey("scratch", disks[0].folder, how, f"{where}; {free}")
    else:
        why = f"no disk with {SCRATCH_BYTES >> 30} GiB that you may write to {where}"
        yield SiteKey("scratch", None, how, why)


def _setup(env: Mapping[str, str]) -> Iterator[SiteKey]:
    """Yield the key of the set-up lines if modules or an environment of conda are active."""
    whys = []
    if modules := [name for name in env.get("LOADEDMODULES", "").split(":") if name]:
        names = " ".join(modules)
        whys.append(
            f"this shell has loaded {names}, and so has a job that it launches; for any shell: "
            f"[module load {names}]"
        )
    if prefix := env.get("CONDA_PREFIX"):
        whys.append(
            f"conda's {prefix} is active in this shell and in a job that it launches; the Python "
            "of a job is that of hpckit launch, unless slurm.python names another one"
        )
    if whys:
        yield SiteKey("setup", (), "found", "; ".join(whys))


def _container(has_pyxis: bool, machine: MachineFacts, on_node: bool) -> SiteKey:
    where, how = _where(machine, on_node)
    if has_pyxis:
        return SiteKey("container", None, "found", f"none; srun supports pyxis: {_PYXIS}")
    if {"apptainer", "singularity"} & set(machine.containers):
        return SiteKey(
            "container", None, how, f"none; apptainer is installed {where}: {_APPTAINER}"
        )
    return SiteKey(
        "container",
        None,
        how,
        f"srun does not support pyxis, and apptainer is not installed {where}",
    )


def _where(machine: MachineFacts, on_node: bool) -> tuple[str, Literal["found", "assumed"]]:
    if on_node:
        return f"on {machine.host}", "found"
    return f"on {machine.host}, which is not a node", "assumed"


def _others(names: Sequence[str] | dict[str, Record], chosen: str | None) -> str:
    others = [name for name in names if name != chosen]
    return f"; others: {', '.join(others)}" if others else ""


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _least(values: Sequence[int | None]) -> int | None:
    there = [value for value in values if value is not None]
    return min(there, default=None)
