"""Parsers for what Slurm says of its configuration, partitions and nodes. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpckit.text.slurm_times import parse_time

CONFIG = ("scontrol", "show", "config")
PARTITIONS = ("scontrol", "--oneliner", "show", "partition")
NODES = ("scontrol", "--oneliner", "show", "node")
_RECORD_STARTS = ("PartitionName=", "NodeName=")
_SOCKETS = re.compile(r"\([^)]*\)")
_GPU = re.compile(r"(?:^|,)gpu(?::([^:,]+))?:(\d+)(?=,|$)")
Record = Mapping[str, str]
"""Values by Slurm's names."""
GpuKind = tuple[str, int]
"""Type of the GPUs ("" if unknown) and their number in a node."""


@dataclass(frozen=True)
class PreemptionGrace:
    """The grace of preemptions."""

    seconds: int | None
    """None: unknown."""
    source: str
    """The setting that determines it."""
    is_suspension: bool = False
    """Whether a preempted job is stopped without a signal, and continued later on its nodes."""

    @property
    def usable_s(self) -> int | None:
        """The grace to plan with, which leaves Slurm and the agents some time."""
        return None if self.seconds is None else max(1, self.seconds - 5)


def parse_config(text: str) -> dict[str, str]:
    """Parses the output of `CONFIG` into values by key."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, sign, value in pairs if sign}


def parse_records(text: str) -> list[dict[str, str]]:
    """Parses the output of `PARTITIONS` or `NODES`, a record per line. Of values with blanks, only
    the first word is kept. Reasons and comments, which may have anything in them, come last, so
    that the first value of a key counts; their line breaks do not begin a record."""
    lines = [line for line in text.splitlines() if line.startswith(_RECORD_STARTS)]
    return [dict(reversed(re.findall(r"(?<!\S)([\w/:]+)=(\S*)", line))) for line in lines]


def parse_table(text: str) -> list[list[str]]:
    """Parses the output of sacctmgr --parsable2 --noheader into the fields of each line."""
    return [line.split("|") for line in text.splitlines() if line.strip()]


def is_by_qos(config: Record) -> bool:
    """Returns whether QOS, and not partitions, determine preemption."""
    return config.get("PreemptType") == "preempt/qos"


def parse_qos(text: str) -> dict[str, str] | None:
    """Parses the output of `qos_command` for `grace_of`; None: there is no such QOS."""
    row = next((row for row in parse_table(text) if len(row) == 3), None)
    if row is None:
        return None
    mode = {} if row[2] in ("", "cluster") else {"PreemptMode": row[2]}
    return {"GraceTime": str(parse_time(row[1]) or 0), **mode}


def has_cons_tres(config: Record) -> bool:
    """Returns whether jobs may request GPUs by the options --gpus-per-node and the like, as they
    may with select/cons_tres alone. Otherwise only --gres requests them."""
    return "cons_tres" in config.get("SelectType", "")


def qos_command(name: str) -> tuple[str, ...]:
    return (
        *("sacctmgr", "--noheader", "--parsable2", "show", "qos", name),
        "format=Name,GraceTime,PreemptMode",
    )


def grace_of(
    partition: Record, config: Record, qos: Record | None = None
) -> PreemptionGrace | None:
    """Returns the grace of a partition's preemptions, or None if its jobs are not preempted.
    Without a GraceTime, only KillWait is left.

    Args:
        qos: the QOS of the job, as returned by `parse_qos`. None: unknown or irrelevant.
    """
    if is_by_qos(config):
        if qos is None:
            return PreemptionGrace(None, "PreemptType=preempt/qos: by the QOS of a job")
        partition = qos
    mode = partition.get("PreemptMode") or config.get("PreemptMode", "OFF")
    if config.get("PreemptType", "preempt/none") == "preempt/none" or mode.upper() == "OFF":
        return None
    if "SUSPEND" in mode.upper():
        return PreemptionGrace(None, f"PreemptMode={mode}", is_suspension=True)
    if given_s := seconds_of(partition.get("GraceTime", "")):
        return PreemptionGrace(given_s, "GraceTime")
    return PreemptionGrace(
        seconds_of(config.get("KillWait", "")) or 0, "KillWait, without a GraceTime"
    )


def seconds_of(text: str) -> int | None:
    """Parses "30" or "30 sec"."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None


def gpu_kinds(gres: str) -> list[GpuKind]:
    """Parses the Gres of a node, such as "gpu:a100:4(S:0-1),nvme:1"."""
    return [(kind, int(count)) for kind, count in _GPU.findall(_SOCKETS.sub("", gres))]


def gpu_kinds_of_nodes(nodes: Iterable[Record]) -> list[tuple[GpuKind, int]]:
    """Returns the kinds of GPUs and the number of nodes with each, the most frequent first."""
    counts = Counter(kind for node in nodes for kind in gpu_kinds(node.get("Gres", "")))
    return counts.most_common()


def describe_gpus(kind: GpuKind) -> str:
    """Returns a text such as "4 x a100"."""
    return f"{kind[1]} x {kind[0] or 'GPU'}"
