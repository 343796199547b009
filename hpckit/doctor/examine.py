"""All checks that a config calls for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from hpckit.doctor import machine, slurm, store
from hpckit.doctor.asking import AskError, ask_node, said, srun_words
from hpckit.doctor.finding import Finding, Level
from hpckit.doctor.reading import CONFIG, PARTITIONS, parse_config, parse_records
from hpckit.run.spec import RunSpec


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
        config, partitions = said(CONFIG), said(PARTITIONS)
    except AskError as error:
        do = "is slurmctld up? scontrol ping"
        yield Finding(Level.FAIL, "slurm", f"out of reach: {error}", do)
        return
    yield from slurm.findings(parse_config(config), parse_records(partitions), spec)


def _node(spec: RunSpec, wants_gpus: bool) -> Iterator[Finding]:
    try:
        facts = ask_node(spec)
    except AskError as error:
        do = f"it was asked by: {' '.join(srun_words(spec)[:-3])} ..."
        yield Finding(Level.FAIL, "node", f"a node did not answer: {error}", do)
        return
    yield from machine.judge(facts, wants_gpus)
