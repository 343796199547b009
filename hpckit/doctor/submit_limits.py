"""Checks how many jobs of a user may be in the queue: the chain of a run has two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpckit.doctor.finding import Finding, Level
from hpckit.slurm.cluster_config import parse_table
from hpckit.text.quantities import count

_TABLE = ("sacctmgr", "--noheader", "--parsable2", "show")
QOS = (*_TABLE, "qos", "format=Name,MaxSubmitJobsPU,MaxSubmitJobsPA,GrpSubmitJobs")
OF_CHAIN = 2
"""Jobs of a run that are in the queue at the same time with launch.continuation=chain."""


@dataclass(frozen=True)
class SubmitLimit:
    """A limit of the jobs in the queue."""

    jobs: int
    source: str
    """What sets it, such as "MaxSubmitJobsPU of the QOS normal"."""


def associations_command(user: str, cluster: str) -> tuple[str, ...]:
    """Return the command whose output `parse_limits` reads.

    Args:
        cluster: Slurm's name of the cluster.
    """
    form = "format=Account,Partition,DefaultQOS,MaxSubmitJobs,GrpSubmitJobs"
    return (*_TABLE, "associations", f"user={user}", f"cluster={cluster}", form)


def parse_limits(
    associations: str,
    qos: str,
    account: str | None,
    chosen: Sequence[str],
    partition: str | None,
) -> list[SubmitLimit]:
    """Parse sacctmgr's tables into the limits that hold for a job.

    Args:
        associations: the output of `associations_command`.
        qos: the output of `QOS`.
        account: the job's account; None: any of the user's, of which the one with the highest
            limit counts, as the user may choose it.
        chosen: the QOS of the job and of its partition.
        partition: the job's partition; None: unknown.
    """
    rows = [row for row in parse_table(associations) if len(row) == 5]
    mine = [
        row for row in rows if account in (None, row[0]) and row[1] in ("", partition or row[1])
    ]
    found = [
        limit
        for at, name in ((3, "MaxSubmitJobs"), (4, "GrpSubmitJobs"))
        if (limit := _highest([(row[at], f"{name} of the account {row[0]}") for row in mine]))
    ]
    names = set(chosen) or {row[2] for row in mine if row[2]}
    for row in parse_table(qos):
        if len(row) == 4 and row[0] in names:
            keys = ("MaxSubmitJobsPU", "MaxSubmitJobsPA", "GrpSubmitJobs")
            given = zip(row[1:], keys, strict=True)
            found += [
                SubmitLimit(int(n), f"{k} of the QOS {row[0]}") for n, k in given if n.isdecimal()
            ]
    return found


def _highest(given: Sequence[tuple[str, str]]) -> SubmitLimit | None:
    """Returns the highest of the limits; None if one is not set, which means without a limit."""
    if not given or not all(number.isdecimal() for number, _ in given):
        return None
    number, source = max(given, key=lambda one: int(one[0]))
    return SubmitLimit(int(number), source)


def judge_limits(limits: Sequence[SubmitLimit], continuation: str) -> Iterator[Finding]:
    """Yield what the limits mean for a run. Pure.

    Args:
        continuation: `launch.continuation` of the run.
    """
    if not limits:
        return
    least = min(limits, key=lambda one: one.jobs)
    what = f"you may have {count(least.jobs, 'job')} in the queue ({least.source})"
    if continuation == "chain" and least.jobs < OF_CHAIN:
        what += ", and a run has two there: the one that runs, and its successor"
        do = "launch.continuation=requeue, which needs no second job in the queue"
        yield Finding(Level.FAIL if least.jobs < 1 else Level.WARN, "job limit", what, do)
    else:
        yield Finding(Level.OK, "job limit", what)
