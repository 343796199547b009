"""Asks Slurm, without submitting a job, when it would start and whether nodes can satisfy it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hpckit.slurm.environment import environment_for
from hpckit.slurm.scontrol import field

# After slurm_errno.c of 22.05 to 26.05; sbatch --test-only says the first one for all constraints.
_IMPOSSIBLE = re.compile(
    r"configuration (is )?not available|[Rr]equ(ir|est)ed nodes? (is |are )?not available"
    r"|Node count specification invalid|[Ii]nvalid feature specification|[Nn]odes are busy"
)
_REFUSED = re.compile(r"[Rr]eservation|[Pp]artition|[Aa]ccount|[Qq][Oo][Ss]|[Ll]icense")
_LIMIT = re.compile(r"violates accounting/QOS policy")
"""The answer where the user has as many jobs as he may have, of which the waiting one is one."""
_FIELDS = {
    **{"Partition": "partition", "Features": "constraint", "Reservation": "reservation"},
    **{"Account": "account", "QOS": "qos", "Licenses": "licenses", "ReqNodeList": "nodelist"},
    **{"NumNodes": "nodes", "MinMemoryNode": "mem", "MinMemoryCPU": "mem-per-cpu"},
    **{"MinCPUsNode": "mincpus", "CPUs/Task": "cpus-per-task", "Switches": "switches"},
}
_NOTHING = ("(null)", "N/A", "", "0", "None")


# Short, as a person waits for the answer.
_START_S = 10.0
_START = re.compile(r"to start at (\S+)(?: .*on nodes (\S+))?")


@dataclass(frozen=True)
class PlacementAnswer:
    """What Slurm says of a job that is not submitted."""

    is_possible: bool | None
    """Whether nodes that are up now can satisfy it, now or after other jobs; None: unknown."""
    message: str
    """Why not, or why it is unknown; empty if it is possible."""

    @property
    def is_refused(self) -> bool:
        """Whether Slurm would never start it as things are: for lack of nodes, or because of its
        partition, reservation, account, QOS or license."""
        is_limit = _LIMIT.search(self.message) is not None
        return self.is_possible is False or (
            not is_limit and _REFUSED.search(self.message) is not None
        )


def start_time(script: str, passed: Collection[str] = ()) -> str:
    """Returns the estimate of `sbatch --test-only` for a batch script, or why there is none;
    nothing is submitted.

    Args:
        passed: as in `environment_for`.
    """
    if shutil.which("sbatch") is None:
        return "unknown: sbatch is not installed on this machine"
    try:
        done = _test_only(script, (), passed, _START_S)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"
    answer = " ".join(done.stderr.split())
    if done.returncode or (found := _START.search(answer)) is None:
        return f"unknown: {answer or 'sbatch --test-only printed nothing'}"
    return f"{found[1]}, by Slurm's present estimate" + (f" ({found[2]})" if found[2] else "")


def ask_placement(
    script: str, options: Sequence[str], passed: Collection[str], within_s: float
) -> PlacementAnswer:
    """Returns the answer of `sbatch --test-only` for a batch script.

    Args:
        options: further options, which replace those of the script.
        passed: as in `environment_for`.
    """
    try:
        done = _test_only(script, options, passed, within_s)
    except (OSError, subprocess.SubprocessError) as error:
        return PlacementAnswer(None, f"sbatch --test-only: {error}")
    return parse_placement(done.returncode, done.stderr)


def _test_only(
    script: str, options: Sequence[str], passed: Collection[str], within_s: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sbatch", "--test-only", *options],
        input=script,
        env=environment_for("submission", os.environ, passed),
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )


def parse_placement(status: int, text: str) -> PlacementAnswer:
    """Returns the answer in the exit status and the errors of `sbatch --test-only`. Pure. An error
    that is not about nodes, as of a limit or the network, leaves the answer open."""
    if status == 0:
        return PlacementAnswer(True, "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    message = lines[-1].removeprefix("sbatch: error: ") if lines else f"exit status {status}"
    message = message.removeprefix("allocation failure: ")
    return PlacementAnswer(False if _IMPOSSIBLE.search(text) else None, message)


def options_of_job(text: str) -> list[str]:
    """Returns the options of sbatch that request what a job has requested, from the output of
    `scontrol show job`. Pure."""
    found = {option: field(text, key) for key, option in _FIELDS.items()}
    found |= _resources(text)
    given = {option: value for option, value in found.items() if value not in (None, *_NOTHING)}
    exclusive = ["--exclusive"] if _has_whole_nodes(text) else []
    return [*(f"--{option}={value}" for option, value in given.items()), *exclusive]


def _has_whole_nodes(text: str) -> bool:
    """Returns whether the job has asked for whole nodes. Slurm 26.05 has a field for that, and says
    OverSubscribe=NO of other jobs as well."""
    if (exclusive := field(text, "Exclusive")) is not None:
        return exclusive == "NODE"
    return field(text, "OverSubscribe") == "NO"


def _resources(text: str) -> Mapping[str, str | None]:
    """Returns the options for generic resources: gres:gpu:2 up to 23.02, gres/gpu:2 since."""
    node, job = (field(text, key) for key in ("TresPerNode", "TresPerJob"))
    per_node = ",".join(re.findall(r"gres[:/]([^,]+)", node or "")) or None
    per_job = re.findall(r"gres[:/]gpu[:=]([^,]+)", job or "")
    return {"gres": per_node, "gpus": per_job[0] if per_job else None}
