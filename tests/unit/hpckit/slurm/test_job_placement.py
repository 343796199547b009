"""What Slurm says of a job that is not submitted."""

from __future__ import annotations

import pytest

from hpckit.slurm.job_placement import options_of_job, parse_placement


@pytest.mark.parametrize(
    ("status", "text", "is_possible"),
    [
        (0, "sbatch: Job 9 to start at 2026-01-02T03:04:05 using 2 processors on nodes n1", True),
        (1, "allocation failure: Requested node configuration is not available", False),
        (1, "sbatch: error: x\nallocation failure: Required node not available (down, ...)", False),
        (1, "allocation failure: Requested partition configuration not available now", False),
        (1, "allocation failure: Requested nodes are busy", False),
        (1, "allocation failure: Job violates accounting/QOS policy", None),
        (1, "allocation failure: Unable to contact slurm controller (connect failure)", None),
        (1, "", None),
    ],
)
def test_only_an_answer_about_nodes_is_one(
    status: int, text: str, is_possible: bool | None
) -> None:
    found = parse_placement(status, text)
    assert found.is_possible is is_possible
    assert bool(found.message) is (is_possible is not True)
    assert "allocation failure" not in found.message


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("allocation failure: Requested node configuration is not available", True),
        ("allocation failure: Requested reservation is invalid", True),
        ("allocation failure: Invalid account or account/partition combination specified", True),
        (
            "allocation failure: Job violates accounting/QOS policy (job submit limit, user's size "
            "and/or time limits)",
            False,
        ),
        ("allocation failure: Unable to contact slurm controller (connect failure)", False),
    ],
)
def test_a_limit_of_submitted_jobs_does_not_refuse_the_one_that_waits(
    text: str, is_refused: bool
) -> None:
    assert parse_placement(1, text).is_refused is is_refused


def test_a_job_is_described_by_what_it_requested() -> None:
    text = (
        "JobId=7 JobName=a Account=physics QOS=(null) Partition=low Reservation=mine NumNodes=2-4 "
        "CPUs/Task=8 MinCPUsNode=8 MinMemoryNode=900M Features=big&fast Licenses=matlab:1 "
        "OverSubscribe=NO ReqNodeList=(null) ExcNodeList=n3 TresPerNode=gres/gpu:a100:4,gres/nvme:1"
    )
    assert options_of_job(text) == [
        *("--partition=low", "--constraint=big&fast", "--reservation=mine", "--account=physics"),
        *("--licenses=matlab:1", "--nodes=2-4", "--mem=900M", "--mincpus=8", "--cpus-per-task=8"),
        *("--gres=gpu:a100:4,nvme:1", "--exclusive"),
    ]
    assert options_of_job("JobId=7 TresPerJob=gres:gpu:4") == ["--gpus=4"]


@pytest.mark.parametrize(
    ("words", "is_whole"),
    [
        ("OverSubscribe=NO", True),  # 22.05 to 24.11, which say OK of other jobs
        ("OverSubscribe=OK", False),
        ("OverSubscribe=NO Exclusive=NODE", True),  # 26.05
        ("OverSubscribe=NO Exclusive=NO", False),
        ("OverSubscribe=NO Exclusive=USER", False),
    ],
)
def test_whole_nodes_are_told_in_the_words_of_each_release(words: str, is_whole: bool) -> None:
    assert options_of_job(f"JobId=7 JobName=a {words}") == (["--exclusive"] if is_whole else [])
