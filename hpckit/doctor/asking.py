"""Slurm's commands, and a node of the cluster, asked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from hpckit.doctor.machine import MachineFacts
from hpckit.run.spec import RunSpec

_QUICK_S, _NODE_S = 20.0, 300.0


class AskError(RuntimeError):
    """There was no answer; says why in a line."""


def said(command: Sequence[str], within_s: float = _QUICK_S) -> str:
    """What a command prints.

    Raises:
        AskError: it is not there, fails, or takes too long.
    """
    try:
        return subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=within_s,
            check=True,
        ).stdout
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        raise AskError(lines[-1] if lines else f"exit status {error.returncode}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise AskError(str(error)) from error


def ask_node(spec: RunSpec) -> MachineFacts:
    """One node of the kind that a job of `spec` gets, by a job of a moment.

    Raises:
        AskError: it did not answer.
    """
    try:
        return TypeAdapter(MachineFacts).validate_json(said(srun_words(spec), _NODE_S))
    except ValidationError as error:
        raise AskError(str(error)) from error


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
