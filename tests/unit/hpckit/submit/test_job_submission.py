"""What a job that is started on this machine inherits."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from hpckit.submit.job_submission import (
    _EnvironmentExecutor,
    _signals_ignored,
    local_variables,
)


def interrupted_start() -> None:
    """Start a process, which ignores the Ctrl-C that comes at this moment."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    with _signals_ignored((signal.SIGINT,)):
        signal.raise_signal(signal.SIGINT)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "True\n"


def test_a_ctrl_c_while_a_job_is_started_is_not_lost_and_the_job_ignores_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_start()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_job_on_this_machine_has_nothing_of_a_launcher_around_it(tmp_path: Path) -> None:
    """But it has the GPUs, and the allocation that the shell is in."""
    of_launcher = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "PET_NNODES", "OMPI_COMM_WORLD_RANK")
    kept = ("HOME", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "HPCKIT_RUNS")
    found = local_variables(RunDir(tmp_path), 1, dict.fromkeys((*of_launcher, *kept), "1"))
    assert {name for name, value in found.items() if value is None} == set(of_launcher)
    assert found.keys().isdisjoint(kept)


@pytest.mark.parametrize(
    "printed",
    [
        "Submitted batch job 41\n",
        "Submitted batch job 41 on cluster west\n",
        "note: job 7 of yours has used 3 h\nSubmitted batch job 41\njob 8 is next\n",
        b"sbatch: job_submit: partition set for job 0 \xff\nSubmitted batch job 41\n",
    ],
)
def test_the_number_of_a_job_is_found_in_whatever_sbatch_prints(printed: bytes | str) -> None:
    assert _EnvironmentExecutor._get_job_id_from_submission_command(printed) == "41"
