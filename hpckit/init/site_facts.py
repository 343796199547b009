"""Facts about a site's Slurm and this user's accounts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpckit.doctor.node_probe import ProbeError, command_output
from hpckit.slurm.cluster_config import (
    CONFIG,
    NODES,
    PARTITIONS,
    Record,
    parse_config,
    parse_records,
    parse_table,
)

_TABLE = ("sacctmgr", "--noheader", "--parsable2", "show")
_QOS = (*_TABLE, "qos", "format=Name,MaxWall")


@dataclass(frozen=True)
class SlurmAccounts:
    """The accounts that this user may charge."""

    default: str | None
    names: tuple[str, ...]
    qos: tuple[str, ...]
    default_qos: str | None


@dataclass(frozen=True)
class SiteFacts:
    """The facts about a site."""

    config: Record
    partitions: Sequence[Record]
    nodes: Sequence[Record]
    accounts: SlurmAccounts | None
    """The user's accounts. None: Slurm has no accounting, or no account of this user."""
    walls: Mapping[str, str]
    """The time limit of a job by QOS, for each QOS that has one."""
    has_pyxis: bool


def ask_site(user: str) -> SiteFacts | None:
    """Return the facts about this machine's Slurm, or None if it has no Slurm.

    Raises:
        ProbeError: Slurm does not answer.
    """
    if shutil.which(CONFIG[0]) is None:
        return None
    config, partitions, nodes = (command_output(command) for command in (CONFIG, PARTITIONS, NODES))
    try:
        owner = command_output((*_TABLE, "user", user, "format=DefaultAccount"))
        held = command_output(
            (*_TABLE, "associations", f"user={user}", "format=Account,QOS,DefaultQOS")
        )
        accounts, walls = parse_accounts(owner, held), dict(parse_walls(command_output(_QOS)))
    except ProbeError:  # for example, Slurm has no accounting
        accounts, walls = None, {}
    return SiteFacts(
        config=parse_config(config),
        partitions=parse_records(partitions),
        nodes=parse_records(nodes),
        accounts=accounts,
        walls=walls,
        has_pyxis=_has_pyxis(),
    )


def parse_accounts(owner: str, held: str) -> SlurmAccounts | None:
    """Parse the output of sacctmgr's `user` and `associations` as they are queried here."""
    rows = [row for row in parse_table(held) if len(row) == 3]
    if not rows:
        return None
    default = next((row[0] for row in parse_table(owner) if row[0]), None)
    names = dict.fromkeys(row[0] for row in rows if row[0])
    qos = dict.fromkeys(name for row in rows for name in row[1].split(",") if name)
    own = [row for row in rows if row[0] == default] or rows
    return SlurmAccounts(default, tuple(names), tuple(qos), own[0][2] or None)


def parse_walls(text: str) -> list[tuple[str, str]]:
    """Parse the output of sacctmgr's `qos` as it is queried here."""
    return [(row[0], row[1]) for row in parse_table(text) if len(row) == 2 and row[1]]


def _has_pyxis() -> bool:
    """Returns whether srun has the options of pyxis."""
    try:
        return "--container-image" in command_output(("srun", "--help"))
    except ProbeError:
        return False
