"""What a job finds of itself when it is requeued."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpckit.rundir.requeue_link import (
    RequeueError,
    find_requeued_submission,
    requeue_link_paths,
    supervisor_command,
    write_requeue_links,
)
from hpckit.supervisor.continuation.expedited_start import EPILOG_S, SOON_S, delay
from hpckit.supervisor.continuation.resize import enlarged_spec
from tests.unit.hpckit.specs_and_processes import make_spec

JOB = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c"}
AGAIN = {**JOB, "SLURM_RESTART_COUNT": "1"}


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere" / "t-1" / "submissions" / "002"
    (folder / "code" / "hpckit").mkdir(parents=True)
    return folder


def test_it_is_found_by_the_job_that_is_requeued_and_by_no_other(
    tmp_path: Path, submission: Path, home: dict[str, str]
) -> None:
    base = tmp_path / "project"
    base.mkdir()
    assert find_requeued_submission(base, {**AGAIN, **home}) is None
    assert write_requeue_links(submission, base, {**JOB, **home}) == []
    assert find_requeued_submission(base, {**AGAIN, **home}) == submission
    assert find_requeued_submission(base, {**JOB, **home}) is None, (
        "the first time: another job had this number"
    )
    assert find_requeued_submission(base, {**AGAIN, **home, "SLURM_JOB_ID": "8"}) is None
    assert find_requeued_submission(base, {**AGAIN, **home, "SLURM_CLUSTER_NAME": "d"}) is None
    newer = submission.with_name("003")
    submission.rename(newer)
    with pytest.raises(RequeueError, match="which does not exist: restore it, or submit again"):
        find_requeued_submission(base, {**AGAIN, **home})
    assert write_requeue_links(newer, base, {**JOB, **home}) == []
    assert find_requeued_submission(base, {**AGAIN, **home}) == newer


def test_one_of_two_places_will_do_and_none_is_told(
    tmp_path: Path, submission: Path, home: dict[str, str]
) -> None:
    base = tmp_path / "project"
    base.write_text("a file, in which no folder can be made")
    assert write_requeue_links(submission, base, {**JOB, **home}) == []
    assert find_requeued_submission(base, {**AGAIN, **home}) == submission
    assert len(write_requeue_links(submission, base, JOB)) == 1
    assert find_requeued_submission(tmp_path / "other", {**AGAIN, **home}) is None, (
        "that of another project"
    )
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), **home, **JOB}
    (own,) = requeue_link_paths(base, state)[1:]
    assert own.parent == tmp_path / "state" / "hpckit" / "jobs"
    assert requeue_link_paths(base, {"XDG_STATE_HOME": "relative", **JOB})[1:] == []


def test_another_users_link_is_none(
    tmp_path: Path, submission: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert write_requeue_links(submission, tmp_path, JOB) == []
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert find_requeued_submission(tmp_path, AGAIN) is None


def test_nothing_but_the_standard_library_is_imported_to_find_it() -> None:
    code = (
        "import sys, hpckit.supervisor.user_job; "
        "print([n for n in sys.modules if n.partition('.')[0] in ('hydra', 'pydantic', 'yaml', "
        "'checkpointing') or n.startswith(('hpckit.submit.', 'hpckit.supervisor.'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ["hpckit.submit.signal_hold", "hpckit.supervisor.user_job"]
    assert done.stdout.strip() == str(names)


def test_the_supervisor_runs_the_code_of_the_submission(submission: Path) -> None:
    command, env = supervisor_command(submission, {"PYTHONPATH": "/mine", "A": "1"})
    assert command[1:] == [
        *("-u", "-m", "hpckit.supervisor.main"),
        *(str(submission.parent.parent), "002"),
    ]
    assert env == {"PYTHONPATH": f"{submission / 'code'}:/mine", "PYTHONSAFEPATH": "1", "A": "1"}


ELASTIC = {"elastic.min_nodes": 1, "launch.nodes": 2, "train.global_batch": 12}


@pytest.mark.parametrize(
    ("changes", "nodes", "overrides", "expected"),
    [
        (ELASTIC, 4, ["elastic=shrink"], 4),
        (ELASTIC, 5, [], 4),  # 12 samples do not divide over 5
        (ELASTIC, 2, [], None),
        (ELASTIC, 1, [], None),
        (ELASTIC, 4, ["++launch.nodes=2"], None),
        ({**ELASTIC, "elastic.min_nodes": None}, 4, [], None),
        ({**ELASTIC, "elastic.scale_lr": "linear"}, 4, [], None),
        ({**ELASTIC, "elastic.spares": 1}, 4, [], 3),
    ],
)
def test_a_run_takes_all_nodes_that_its_job_comes_back_with(
    changes: dict[str, object], nodes: int, overrides: list[str], expected: int | None
) -> None:
    base = {"train.micro_batch": 1, "launch.nproc_per_node": 1, **changes}
    found = enlarged_spec(make_spec(base), nodes, overrides)
    assert (found and found.launch.nodes) == expected


def test_an_epilog_of_the_site_has_time_to_end_before_the_job_may_begin() -> None:
    config = "AuthInfo                = cred_expire=120\nEpilog                  = {}\n{}"
    none = "EpilogSlurmctld         = (null)\n"
    assert delay(config.format("(null)", none)) == SOON_S
    assert delay(config.format("/etc/slurm/epilog", none)) == EPILOG_S
    assert delay(config.format("(null)", "EpilogSlurmctld = /e[1]\n")) == EPILOG_S
    assert delay(None) == EPILOG_S
