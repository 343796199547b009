"""Functions that run Slurm's commands, and a probe on a node of the cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import dump_spec
from hpckit.doctor.machine import MachineFacts
from hpckit.slurm.environment import environment_for
from hpckit.slurm.slurm_query import query
from hpckit.submit.batch_script import BatchJob, parameters, passed_variables

_QUICK_S, _NODE_S = 20.0, 300.0
_CANCEL_S = 0.7
_MISSING = "hpckit-doctor: no command "
_NOTE_MISSING = f'command_not_found_handle() {{ echo "{_MISSING}$1" >&2; return 127; }}'
"""A function that bash calls, whatever its language, for a command that does not exist."""
_OF_RUN = {
    *("job-name", "nodes", "time", "setup", "array-parallelism", "stderr-to-stdout", "use-srun"),
    *("wckey", "output", "error", "signal", "dependency", "requeue", "no-requeue", "no-kill"),
    *("mail-type", "mail-user", "comment"),
}
"""Options of a batch script that concern the run and not its nodes."""


class ProbeError(RuntimeError):
    """Raised if there was no answer; the message is one line that gives the reason."""


def command_output(command: Sequence[str], within_s: float = _QUICK_S) -> str:
    """Return the output of a command.

    Raises:
        ProbeError: it does not exist, fails, or takes too long.
    """
    try:
        return query(command, within_s, variables=_imports())
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        raise ProbeError(lines[-1] if lines else f"exit status {error.returncode}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise ProbeError(str(error)) from error


def _imports() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(sys.path)}


def ask_node(spec: RunSpec, host: str | None, folders: Sequence[str] = ()) -> MachineFacts:
    """Collect the facts about one node of the kind that a job of `spec` gets, by a short job.

    Args:
        host: the name of the node; None: any node.
        folders: folders to identify there.

    Raises:
        ProbeError: the node did not answer.
    """
    try:
        output, errors = _job_output([*srun_words(spec, host), *folders], passed_variables(spec))
        facts = TypeAdapter(MachineFacts).validate_json(output)
        found = (line.partition(_MISSING) for line in errors.splitlines())
        return replace(
            facts, missing=tuple(dict.fromkeys(name for _, is_it, name in found if is_it))
        )
    except ValidationError as error:
        raise ProbeError(str(error)) from error


def check_node(spec: RunSpec, host: str) -> list[str]:
    """Run the health checks of `spec.health` on a node, by a short job, and return the problems, a
    line each.

    Raises:
        ProbeError: the node did not answer.
    """
    words = srun_words(spec, host, "hpckit.agent.node_health.node_check")
    try:
        output, _ = _job_output(words, passed_variables(spec), dump_spec(spec))
        return TypeAdapter(list[str]).validate_json(output)
    except ValidationError as error:
        raise ProbeError(str(error)) from error


def srun_words(
    spec: RunSpec, host: str | None = None, program: str = "hpckit.doctor.machine"
) -> list[str]:
    """Return the command that runs a probe on one node of the job's kind: with the options of a
    run's own request, except those about the run, and with the site's setup. It runs outside of the
    container, which has no hpckit of its own.

    Args:
        program: the module that is executed.
    """
    chosen = spec.cluster.slurm
    assert chosen is not None
    request = parameters(spec, BatchJob("hpckit-doctor", Path(), Path(os.devnull), ""))
    request = {key: value for key, value in request.items() if value is not None}
    request |= request.pop("additional_parameters")
    options = {key.replace("_", "-"): value for key, value in request.items()}
    options = {key: value for key, value in options.items() if key not in _OF_RUN}
    if host is not None:
        options |= {"nodelist": host}
        options.pop("exclude", None)  # the site's own list may have it
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
        *("bash", "-c", "\n".join((_NOTE_MISSING, *chosen.setup, 'exec "$@"')), "bash"),
        *(chosen.python or sys.executable, "-m", program),
    ]


def _job_output(
    command: Sequence[str], passed: Collection[str], given: str = ""
) -> tuple[str, str]:
    """Return the output of srun and its errors, as `command_output` does. On a timeout srun is
    asked to cancel its job, because a killed srun would leave it behind.

    Args:
        given: the standard input of the program.

    Raises:
        ProbeError: it fails, or takes too long.
    """
    try:
        process = subprocess.Popen(
            command,
            env=environment_for("submission", os.environ, passed) | _imports(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise ProbeError(str(error)) from error
    with process:
        try:
            output, why = process.communicate(given, timeout=_NODE_S + _QUICK_S)
        except subprocess.TimeoutExpired:
            raise ProbeError(f"no answer within {_NODE_S + _QUICK_S:.0f} s") from None
        finally:
            _cancel_job(process)
    if process.returncode:
        lines = why.strip().splitlines()
        raise ProbeError(lines[-1] if lines else f"exit status {process.returncode}")
    return output, why


def _cancel_job(asked: subprocess.Popen[str]) -> None:
    for number in (
        signal.SIGINT,
        signal.SIGINT,
        signal.SIGTERM,
    ):  # two SIGINTs end srun immediately
        if asked.poll() is not None:
            return
        asked.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            asked.wait(_CANCEL_S)
    asked.kill()
