"""Runs all checks that a config calls for."""

from __future__ import annotations

import getpass
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hpckit.config.rules.violations import is_elastic
from hpckit.config.spec import RunSpec
from hpckit.doctor import checkpoint_store, machine, slurm_settings, submit_limits
from hpckit.doctor.finding import Finding, Level
from hpckit.doctor.folder_visibility import (
    identify_folder,
    judge_places,
    own_folders,
    shared_folders,
)
from hpckit.doctor.installation import judge_installation
from hpckit.doctor.node_probe import ProbeError, ask_node, command_output, srun_words
from hpckit.slurm.cluster_config import (
    CONFIG,
    PARTITIONS,
    Record,
    is_by_qos,
    parse_config,
    parse_qos,
    parse_records,
    qos_command,
)
from hpckit.slurm.job_ownership import commented_folder
from hpckit.slurm.pending_reasons import explain
from hpckit.slurm.squeue import QueueError, SlurmJob, queue
from hpckit.submit.continuation.continuation_facts import read_facts


def examine(
    spec: RunSpec, root: Path, asks_node: bool, host: str | None = None
) -> Iterator[tuple[str, Finding]]:
    """Yield findings as they are made, each with the part of the site that it is about.

    Args:
        root: the folder of the runs, which also holds the checkpoints unless the spec names a
        store. asks_node: whether Slurm runs the checks of a machine on one of its nodes. host: the
        name of that node; None: any node.
    """
    wants_gpus = spec.cluster.device != "cpu"
    yield "here", judge_installation()
    here = machine.ask()
    for one in machine.judge(here, wants_gpus):
        yield "here", one
    for one in checkpoint_store.findings(spec.checkpoint.url or str(root)):
        yield "checkpoints", one
    if spec.cluster.slurm is None:
        return
    for one in _slurm(spec):
        yield "slurm", one
    if asks_node:
        for one in _node(spec, here, host):
            yield "node", one


def _slurm(spec: RunSpec) -> Iterator[Finding]:
    if shutil.which("scontrol") is None:
        do = "load Slurm's module, or work on a login node; cluster=local does not need Slurm"
        yield Finding(Level.FAIL, "slurm", "scontrol is not installed here", do)
        return
    try:
        config, partitions = command_output(CONFIG), command_output(PARTITIONS)
    except ProbeError as error:
        do = "check with scontrol ping whether slurmctld is running"
        yield Finding(Level.FAIL, "slurm", f"it does not answer: {error}", do)
        return
    read, listed = parse_config(config), parse_records(partitions)
    assert spec.cluster.slurm is not None
    facts = read_facts(spec.cluster.slurm, read, listed)
    facts = replace(facts, is_elastic=is_elastic(spec))
    yield from slurm_settings.findings(read, listed, spec, _qos(read, spec), facts)
    yield from submit_limits.judge_limits(_limits(read, listed, spec), spec.launch.continuation)
    yield from _blocked_jobs()


def _blocked_jobs() -> Iterator[Finding]:
    """Find jobs of the user's runs that do not start before somebody changes something."""
    try:
        jobs = queue()
    except QueueError as error:
        yield Finding(Level.NOTE, "queued jobs", f"they are unknown: {error}")
        return
    yield from judge_queue(jobs)


def judge_queue(jobs: Iterable[SlurmJob]) -> Iterator[Finding]:
    """Yield what keeps jobs of runs from ever starting. Pure.

    Args:
        jobs: the user's jobs.
    """
    for job in jobs:
        reason, folder = explain(job.reason), commented_folder(job.comment)
        if job.is_waiting and folder is not None and reason.is_lasting:
            what = f"job {job.number} of {folder} cannot start: {job.reason}: {reason.meaning}"
            do = reason.advice.replace("JOB", job.number)
            yield Finding(Level.WARN, "queued jobs", what, do)


def _limits(
    config: Record, partitions: Sequence[Record], spec: RunSpec
) -> list[submit_limits.SubmitLimit]:
    """Return the limits of the jobs in the queue; empty if there are none, or no accounting."""
    slurm = spec.cluster.slurm
    assert slurm is not None
    if "slurmdbd" not in config.get("AccountingStorageType", ""):
        return []
    named = submit_limits.associations_command(getpass.getuser(), config.get("ClusterName", ""))
    try:
        associations, qos = command_output(named), command_output(submit_limits.QOS)
    except ProbeError:  # slurmdbd may be away, without which jobs run all the same
        return []
    partition = slurm_settings.partition_of(partitions, slurm)
    of_partition = partition.get("QoS", "N/A") if partition else "N/A"
    chosen = [one for one in (slurm.qos, of_partition) if one and one not in ("N/A", "(null)")]
    name = partition.get("PartitionName") if partition else None
    return submit_limits.parse_limits(associations, qos, slurm.account, chosen, name)


def _qos(config: Record, spec: RunSpec) -> Record | None:
    """Return the QOS that determines the preemption of a job of `spec`, if it is named and Slurm
    knows it."""
    assert spec.cluster.slurm is not None
    name = spec.cluster.slurm.qos
    if name is None or not is_by_qos(config):
        return None
    try:
        return parse_qos(command_output(qos_command(name)))
    except ProbeError:  # it is reported as unknown
        return None


def _node(spec: RunSpec, here: machine.MachineFacts, host: str | None) -> Iterator[Finding]:
    shared, own = shared_folders(spec), own_folders(spec)
    folders = list(dict.fromkeys((*shared.values(), *own.values())))
    try:
        facts = ask_node(spec, host, folders)
    except ProbeError as error:
        do = f"the command was: {shlex.join(srun_words(spec, host))}"
        yield Finding(Level.FAIL, "node", f"a node did not answer: {error}", do)
        return
    yield from machine.judge(facts, spec.cluster.device != "cpu")
    yield from machine.judge_setup(facts, here)
    yield from judge_places(shared, own, [identify_folder(one) for one in folders], facts.folders)
    if spec.cluster.slurm is not None and spec.cluster.slurm.container is not None:
        what = f"inspected outside of {spec.cluster.slurm.container.image}, whose Python may differ"
        yield Finding(Level.NOTE, "container", what)
