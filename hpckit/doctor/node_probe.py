"""Slurm's commands, and a node of the cluster, asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hpckit.config.spec import RunSpec
from hpckit.doctor.machine import MachineFacts
from hpckit.submit.batch_script import BatchJob, parameters

_QUICK_S, _NODE_S = 20.0, 300.0
_WITHDRAWN_S = 0.7
_OF_RUN = {
    *("job-name", "nodes", "time", "setup", "array-parallelism", "stderr-to-stdout", "use-srun"),
    *("wckey", "output", "error", "signal", "dependency", "requeue", "no-requeue", "no-kill"),
    *("mail-type", "mail-user", "comment"),
}
"""Options of a batch script that are the run's own business."""


class ProbeError(RuntimeError):
    """There was no answer; says why in a line."""


def command_output(command: Sequence[str], within_s: float = _QUICK_S) -> str:
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
        raise ProbeError(lines[-1] if lines else f"exit status {error.returncode}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise ProbeError(str(error)) from error


def ask_node(spec: RunSpec, host: str | None, folders: Sequence[str] = ()) -> MachineFacts:
    """One node of the kind that a job of `spec` gets, by a job of a moment.

    Args:
        host: its name; None: any.
        folders: that it is asked about, too.

    Raises:
        AskError: it did not answer.
    """
    try:
        told = _said_by_job([*srun_words(spec, host), *folders])
        return TypeAdapter(MachineFacts).validate_json(told)
    except ValidationError as error:
        raise ProbeError(str(error)) from error


def srun_words(spec: RunSpec, host: str | None = None) -> list[str]:
    """By which one node of the job's kind is asked: the lines of a run's own request, but for what
    is about the run, and the site's setup. Not in the container, which has no hpckit of its own."""
    chosen = spec.cluster.slurm
    assert chosen is not None
    asked = parameters(spec, BatchJob("hpckit-doctor", Path(), Path(os.devnull), "", None))
    asked = {key: value for key, value in asked.items() if value is not None}
    asked |= asked.pop("additional_parameters")
    options = {key.replace("_", "-"): value for key, value in asked.items()}
    options = {key: value for key, value in options.items() if key not in _OF_RUN}
    options |= {} if host is None else {"nodelist": host}
    return [
        *(
            "srun",
            "--nodes=1",
            "--ntasks=1",
            "--time=5",
            "--quiet",
            "--job-name=hpckit-doctor",
            f"--immediate={_NODE_S:.0f}",
        ),
        *(f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items()),
        *("bash", "-c", "\n".join((*chosen.setup, 'exec "$@"')), "bash"),
        *(chosen.python or sys.executable, "-m", "hpckit.doctor.machine"),
    ]


def _said_by_job(command: Sequence[str]) -> str:
    """As `command_output`, of srun, which is asked to withdraw its job: killed, it would leave it
    behind.

    Raises:
        AskError: it fails, or takes too long.
    """
    try:
        asked = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise ProbeError(str(error)) from error
    with asked:
        try:
            told, why = asked.communicate(timeout=_NODE_S + _QUICK_S)
        except subprocess.TimeoutExpired:
            raise ProbeError(f"not in {_NODE_S + _QUICK_S:.0f} s") from None
        finally:
            _withdraw(asked)
    if asked.returncode:
        lines = why.strip().splitlines()
        raise ProbeError(lines[-1] if lines else f"exit status {asked.returncode}")
    return told


def _withdraw(asked: subprocess.Popen[str]) -> None:
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):  # the second one: at once
        if asked.poll() is not None:
            return
        asked.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            asked.wait(_WITHDRAWN_S)
    asked.kill()
