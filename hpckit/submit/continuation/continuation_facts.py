"""Reads from Slurm what decides how a run continues, and settles `launch.continuation` by it."""

from __future__ import annotations

import getpass
import logging
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from hpckit.config.rules.violations import is_elastic
from hpckit.config.spec import RunSpec, SlurmSpec
from hpckit.config.spec_parser import SpecError, with_values
from hpckit.slurm.cluster_config import (
    CONFIG,
    PARTITIONS,
    Record,
    is_by_qos,
    parse_config,
    parse_qos,
    parse_records,
    parse_table,
    qos_command,
)
from hpckit.slurm.slurm_query import query
from hpckit.submit.continuation.continuation_choice import (
    ENABLED,
    HOLD_S,
    ContinuationChoice,
    ContinuationFacts,
    choose_continuation,
    expedite_problems,
    is_expedite_refused,
    parse_version,
)

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_VERSION = ("sbatch", "--version")


def with_continuation(spec: RunSpec) -> tuple[RunSpec, list[str]]:
    """Returns the spec with the way of continuing that `launch.continuation=auto` stands for on
    this site, and a note that says which one it is and why. Other values stay.

    Raises:
        SpecError: `launch.continuation=expedite`, and sbatch would refuse it.
    """
    slurm, how = spec.cluster.slurm, spec.launch.continuation
    if slurm is None or how not in ("auto", "expedite"):
        return spec, []
    facts = replace(read_facts(slurm), is_elastic=is_elastic(spec))
    if how == "expedite":
        if is_expedite_refused(facts):
            why = next(expedite_problems(facts))
            raise SpecError([f"launch.continuation=expedite: {why}; use auto or chain"])
        return spec, []
    choice = choose_continuation(facts)
    launch = with_values(spec.launch, continuation=choice.how)
    return with_values(spec, launch=launch), [describe_choice(choice)]


def describe_choice(choice: ContinuationChoice) -> str:
    """Returns a line on what `launch.continuation=auto` picks."""
    return f"launch.continuation=auto picks {choice.how}: {choice.reason}"


def read_facts(
    slurm: SlurmSpec, config: Record | None = None, partitions: Sequence[Record] | None = None
) -> ContinuationFacts:
    """Returns what Slurm says of the jobs of these options. What it does not say is unknown.

    Args:
        config, partitions: as `hpckit.slurm.cluster_config` parses them, if they were read already.
    """
    config = parse_config(_output(CONFIG)) if config is None else config
    if not config:
        return ContinuationFacts()
    qos = parse_qos(_output(qos_command(slurm.qos))) if slurm.qos and is_by_qos(config) else None
    limits = ""
    if "limits" in config.get("AccountingStorageEnforce", "").lower():
        limits = _output(_limits_command(slurm.account))
    partitions = parse_records(_output(PARTITIONS)) if partitions is None else partitions
    return facts_of(config, partitions, slurm, _output(_VERSION), qos, limits)


def facts_of(
    config: Record,
    partitions: Sequence[Record],
    slurm: SlurmSpec,
    client: str = "",
    qos: Record | None = None,
    limits: str = "",
) -> ContinuationFacts:
    """Returns the facts in the output of Slurm's commands. Pure.

    Args:
        config, partitions, qos: as `hpckit.slurm.cluster_config` parses them.
        client: the output of `sbatch --version`.
        limits: the output of sacctmgr for the user's associations, MaxSubmitJobs in each line.
    """
    return ContinuationFacts(
        version=parse_version(config.get("SLURM_VERSION", "")),
        client=parse_version(client),
        is_expedite_enabled=ENABLED in config.get("SlurmctldParameters", "").split(","),
        preempt_mode=_preempt_mode(config, partitions, slurm, qos),
        most_jobs=_most_jobs(limits),
        hold_s=hold_s(config),
    )


def hold_s(config: Mapping[str, str]) -> int:
    """Returns the seconds for which Slurm holds a requeued job: requeue_delay of
    SchedulerParameters, since 25.11, or cred_expire of AuthInfo, and one more."""
    found = re.search(r"\brequeue_delay=(\d+)", config.get("SchedulerParameters", ""))
    found = found or re.search(r"\bcred_expire=(\d+)", config.get("AuthInfo", ""))
    return (int(found[1]) if found else HOLD_S) + 1


def _preempt_mode(
    config: Record, partitions: Sequence[Record], slurm: SlurmSpec, qos: Record | None
) -> str | None:
    if config.get("PreemptType", "preempt/none") == "preempt/none":
        return "off"
    general = config.get("PreemptMode", "OFF")
    if is_by_qos(config):
        return None if qos is None else _mode(qos.get("PreemptMode") or general)
    names = slurm.partition.split(",") if slurm.partition else None
    modes = {
        _mode(one.get("PreemptMode") or general)
        for one in partitions
        if (one.get("Default") == "YES" if names is None else one.get("PartitionName") in names)
    }
    if len(modes) > 1:
        modes -= {"off", "requeue"}  # the job may get into the partition with the worst one
    return next(iter(sorted(modes)), None)


def _mode(text: str) -> str:
    """Returns a mode of Slurm without GANG, which preempts nothing."""
    words = [word for word in text.lower().split(",") if word != "gang"]
    return words[0] if words else "off"


def _limits_command(account: str | None) -> tuple[str, ...]:
    where = (f"account={account}",) if account else ()
    user = f"user={getpass.getuser()}"
    head = ("sacctmgr", "--noheader", "--parsable2", "show", "associations")
    return (*head, user, *where, "format=MaxSubmitJobs")


def _most_jobs(limits: str) -> int | None:
    """Returns the least limit, as it is unknown which association counts."""
    rows = [row[0].strip() for row in parse_table(limits)]
    return min((int(row) for row in rows if row.isdigit()), default=None)


@cache
def _output(command: tuple[str, ...]) -> str:
    """Returns the output of one of Slurm's programs, which each process executes once; empty if it
    fails."""
    try:
        return query(command, _TIMEOUT_S, os.environ)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("cannot execute %s: %s", " ".join(command), error)
        return ""
