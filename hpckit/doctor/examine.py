"""All checks that a config calls for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hpckit.doctor import machine, slurm, store
from hpckit.doctor.finding import Finding, Level
from hpckit.doctor.machine import MachineFacts
from hpckit.run.spec import RunSpec

_QUICK_S, _NODE_S = 20.0, 300.0


def examine(spec: RunSpec, root: Path, asks_node: bool) -> Iterator[tuple[str, Finding]]:
    """Findings as they come, each with the part that it is of.

    Args:
        root: folder of the runs, where checkpoints are too unless the spec says otherwise.
        asks_node: have Slurm run the checks of a machine on one of its nodes.
    """
    wants_gpus = spec.cluster.device != "cpu"
    for one in machine.judge(machine.ask(), wants_gpus):
        yield "here", one
    for one in store.findings(spec.checkpoint.url or str(root)):
        yield "checkpoints", one
    if spec.cluster.slurm is None:
        return
    for one in _slurm(spec):
        yield "slurm", one
    if asks_node:
        for one in _node(spec, wants_gpus):
            yield "node", one


def _slurm(spec: RunSpec) -> Iterator[Finding]:
    if shutil.which("scontrol") is None:
        do = "load Slurm's module, or work on a login node; cluster=local needs none"
        yield Finding(Level.FAIL, "slurm", "there is no scontrol", do)
        return
    try:
        config, partitions = (
            _said(command, _QUICK_S) for command in (slurm.CONFIG, slurm.PARTITIONS)
        )
    except (OSError, subprocess.SubprocessError) as error:
        do = "is slurmctld up? scontrol ping"
        yield Finding(Level.FAIL, "slurm", f"out of reach: {_why(error)}", do)
        return
    yield from slurm.findings(slurm.parse_config(config), slurm.parse_partitions(partitions), spec)


def _node(spec: RunSpec, wants_gpus: bool) -> Iterator[Finding]:
    assert spec.cluster.slurm is not None
    command = srun_words(spec)
    try:
        facts = TypeAdapter(MachineFacts).validate_json(_said(command, _NODE_S))
    except (OSError, subprocess.SubprocessError, ValidationError) as error:
        do = f"it was asked by: {' '.join(command[:-3])} ..."
        yield Finding(Level.FAIL, "node", f"a node did not answer: {_why(error)}", do)
        return
    yield from machine.judge(facts, wants_gpus)


def srun_words(spec: RunSpec) -> list[str]:
    """By which one node of the job's kind is asked."""
    chosen = spec.cluster.slurm
    assert chosen is not None
    named = {
        "partition": chosen.partition,
        "account": chosen.account,
        "qos": chosen.qos,
        "constraint": chosen.constraint,
        "reservation": chosen.reservation,
    }
    options = [f"--{name}={value}" for name, value in named.items() if value is not None]
    python = chosen.python or sys.executable
    job = ("--nodes=1", "--ntasks=1", "--time=5", "--quiet", "--job-name=hpckit-doctor")
    return ["srun", *job, *options, python, "-m", "hpckit.doctor.machine"]


def _said(command: Sequence[str], within_s: float) -> str:
    return subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=within_s,
        check=True,
    ).stdout


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or "").strip().splitlines()
        return said[-1] if said else f"exit status {error.returncode}"
    return str(error)
