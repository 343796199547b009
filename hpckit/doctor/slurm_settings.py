"""Findings about Slurm's configuration that matters to a run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpckit.config.spec import RunSpec, SlurmSpec
from hpckit.doctor.finding import Finding, Level
from hpckit.slurm.cluster_config import (
    PreemptionGrace,
    grace_of,
    has_cons_tres,
    seconds_of,
)
from hpckit.submit.continuation.continuation_choice import (
    HOLD_S,
    ContinuationFacts,
    choose_continuation,
    expedite_problems,
    is_expedite_refused,
)
from hpckit.submit.continuation.continuation_facts import facts_of
from hpckit.text.quantities import count
from hpckit.text.slurm_times import parse_time

OLDEST = (20, 11)
"""The first version of Slurm whose srun has --overlap."""
_PER_JOB = ("/tmp", "/dev/shm")
"""The folders that job_container/tmpfs gives to each job unless a site chooses others."""


def findings(
    config: Mapping[str, str],
    partitions: Sequence[Mapping[str, str]],
    spec: RunSpec,
    qos: Mapping[str, str] | None = None,
    facts: ContinuationFacts | None = None,
) -> Iterator[Finding]:
    """Return findings about settings that matter to a run of `spec`, which is for Slurm.

    Args:
        qos: the QOS of its jobs, if that decides on preemption; see `grace_of`.
        facts: what decides how the run continues. None: only what the other arguments say.
    """
    assert spec.cluster.slurm is not None
    facts = facts or facts_of(config, partitions, spec.cluster.slurm, qos=qos)
    yield _version(config.get("SLURM_VERSION", ""))
    yield _tracking(config.get("ProctrackType", ""))
    if (silent := _silence(config)) is not None:
        yield silent
    yield _continuation(spec.launch.continuation, facts)
    if spec.launch.continuation == "requeue":
        yield _requeue(facts)
    yield from _gpu_requests(config, spec)
    yield from _private_folders(config, spec)
    partition = partition_of(partitions, spec.cluster.slurm)
    if partition is None:
        named = spec.cluster.slurm.partition
        there = ", ".join(one.get("PartitionName", "?") for one in partitions)
        what = f"there is no partition {named}" if named else "there is no default partition"
        do = f"set cluster.slurm.partition to one of {there}"
        yield Finding(Level.FAIL, "partition", what, do)
        return
    yield from _of_partition(partition, config, spec, qos)


def _version(text: str) -> Finding:
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None:
        return Finding(
            Level.WARN, "slurm", f"its version is unknown: {text or 'it does not report one'}"
        )
    if (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return Finding(Level.FAIL, "slurm", text, f"hpckit needs Slurm {oldest} or newer")
    return Finding(Level.OK, "slurm", text)


def _tracking(kind: str) -> Finding:
    subject = "processes"
    if kind == "proctrack/cgroup":
        return Finding(Level.OK, subject, "tracked by cgroups")
    what = f"tracked by {kind or 'something unknown'}, from which some processes can escape"
    do = "ask an administrator for ProctrackType=proctrack/cgroup in slurm.conf"
    return Finding(Level.WARN, subject, what, do)


def _silence(config: Mapping[str, str]) -> Finding | None:
    seconds = seconds_of(config.get("SlurmdTimeout", ""))
    if seconds is None or seconds <= 300:
        return None
    what = f"Slurm takes {seconds} s to notice that the node of a job's first process is lost"
    do = "ask an administrator for SlurmdTimeout=300 or less; hpckit notices other nodes in seconds"
    return Finding(Level.NOTE, "lost nodes", what, do)


def _continuation(how: str, facts: ContinuationFacts) -> Finding:
    """Describe how a run continues, and what `auto` would pick here."""
    subject, choice = "continuation", choose_continuation(facts)
    if how == "expedite" and is_expedite_refused(facts):
        what = f"launch.continuation=expedite: {next(expedite_problems(facts))}"
        return Finding(Level.FAIL, subject, what, f"launch.continuation={choice.how}, or auto")
    if how in ("auto", choice.how):
        what = f"launch.continuation={how} is {choice.how}" if how == "auto" else f"by {how}"
        return Finding(Level.OK, subject, f"{what}: {choice.reason}")
    what = f"launch.continuation={how}; auto would pick {choice.how}: {choice.reason}"
    return Finding(Level.OK, subject, what)


def _requeue(facts: ContinuationFacts) -> Finding:
    what = f"launch.continuation=requeue: Slurm holds a requeued job for {facts.hold_s} s"
    if facts.hold_s <= HOLD_S:
        return Finding(Level.OK, "requeue", what)
    return Finding(Level.NOTE, "requeue", what, "launch.continuation=chain does not wait")


def partition_of(
    partitions: Sequence[Mapping[str, str]], slurm: SlurmSpec
) -> Mapping[str, str] | None:
    """Return the partition of a job; None: there is none of this name, or no default."""

    def is_it(one: Mapping[str, str]) -> bool:
        if slurm.partition is None:
            return one.get("Default") == "YES"
        return one.get("PartitionName") in slurm.partition.split(",")

    return next(filter(is_it, partitions), None)


def _of_partition(
    partition: Mapping[str, str],
    config: Mapping[str, str],
    spec: RunSpec,
    qos: Mapping[str, str] | None,
) -> Iterator[Finding]:
    name = partition.get("PartitionName", "?")
    if (state := partition.get("State", "UP")) != "UP":
        do = "use another cluster.slurm.partition, or ask the site"
        yield Finding(Level.WARN, "partition", f"{name} is {state}", do)
    else:
        yield Finding(Level.OK, "partition", f"{name}: {_size(partition)}")
    grace = grace_of(partition, config, qos)
    if grace is not None and grace.is_suspension:
        yield _suspension(name, grace)
        grace = None
    else:
        yield _grace(name, grace, spec.cluster.grace_s)
    if grace is not None and (deaf := _batch_signal(config)) is not None:
        yield deaf
    longest, wanted = parse_time(partition.get("MaxTime", "")), spec.cluster.slurm
    assert wanted is not None
    asked = parse_time(wanted.time_limit or "")
    if longest is not None and asked is not None and asked > longest:
        what = f"{wanted.time_limit} is more than {name} allows: {partition['MaxTime']}"
        do = f'cluster.slurm.time_limit="{partition["MaxTime"]}"; the run continues in the next job'
        yield Finding(Level.FAIL, "time limit", what, do)


def _grace(name: str, grace: PreemptionGrace | None, wanted_s: float) -> Finding:
    subject = "preemption"
    if grace is None:
        return Finding(Level.OK, subject, f"jobs of {name} are not preempted")
    if grace.seconds is None:
        what = f"the time that a preempted job of {name} has is unknown ({grace.source})"
        do = (
            "set cluster.slurm.qos to the QOS to query, or see sacctmgr show qos "
            "format=Name,GraceTime"
        )
        return Finding(Level.NOTE, subject, what, do)
    what = f"a preempted job of {name} has {grace.seconds} s ({grace.source})"
    if wanted_s > grace.seconds:
        do = f"set cluster.grace_s={grace.usable_s}; if a save takes longer, ask for a GraceTime"
        return Finding(Level.WARN, subject, f"{what}, but cluster.grace_s={wanted_s:g}", do)
    return Finding(Level.OK, subject, what)


def _suspension(name: str, grace: PreemptionGrace) -> Finding:
    what = (
        f"a preempted job of {name} is stopped ({grace.source}): it gets no signal, saves nothing "
        "and keeps its memory, and continues when the other job has ended"
    )
    do = "use a partition whose PreemptMode is REQUEUE or CANCEL, where the run saves and leaves"
    return Finding(Level.WARN, "preemption", what, do)


def _gpu_requests(config: Mapping[str, str], spec: RunSpec) -> Iterator[Finding]:
    """Check whether the option by which the spec requests GPUs is one that Slurm takes."""
    slurm = spec.cluster.slurm
    assert slurm is not None
    if spec.cluster.device == "cpu" or slurm.gpus == "none":
        return
    select, types = config.get("SelectType"), config.get("GresTypes")
    if types is not None and "gpu" not in types.split(","):
        what = f"cluster.slurm.gpus={slurm.gpus}, but this Slurm knows no GPUs (GresTypes={types})"
        yield Finding(Level.FAIL, "GPUs of a job", what, "set cluster.slurm.gpus=none")
    elif select is not None and slurm.gpus == "gpus-per-node" and not has_cons_tres(config):
        what = f"cluster.slurm.gpus=gpus-per-node, which {select} does not have"
        yield Finding(Level.FAIL, "GPUs of a job", what, "set cluster.slurm.gpus=gres")


def _private_folders(config: Mapping[str, str], spec: RunSpec) -> Iterator[Finding]:
    """Check whether what is to outlive a job lies in a folder that ends with the job."""
    kinds = (config.get("JobContainerType", ""), config.get("NamespaceType", ""))
    if not any(kind.endswith("tmpfs") for kind in kinds):
        return
    for key, folder in (("data.cache", spec.data.cache), ("root", spec.root)):
        path = Path(str(folder)) if folder is not None else None
        if path is not None and any(path.is_relative_to(one) for one in _PER_JOB):
            what = f"{key}={path}: each job has {_PER_JOB[0]} of its own here, which ends with it"
            do = f"set {key} to a folder that is not in {' or '.join(_PER_JOB)}"
            level = Level.FAIL if key == "root" else Level.WARN
            yield Finding(level, "folders", what, do)


def _batch_signal(config: Mapping[str, str]) -> Finding | None:
    """Check whether the batch process of a job is signalled on a preemption, as its steps always
    are."""
    options = f"{config.get('PreemptParameters', '')},{config.get('SlurmctldParameters', '')}"
    if "send_user_signal" in options:  # older versions call it preempt_send_user_signal
        return None
    what = (
        "a preempted job's own --signal is not sent: the signal reaches its nodes, which inform "
        "the supervisor"
    )
    do = "if preemptions lose steps, ask an administrator for PreemptParameters=send_user_signal"
    return Finding(Level.NOTE, "preempt signal", what, do)


def _size(partition: Mapping[str, str]) -> str:
    total = partition.get("TotalNodes", "")
    return count(int(total), "node") if total.isdigit() else "an unknown number of nodes"
