from __future__ import annotations

import pytest

from hpckit.slurm.pending_reasons import explain


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("Resources", "next in the queue"),
        ("Priority", "higher priority"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", "down, drained, reserved"),
        ("ReqNodeNotAvail,_UnavailableNodes:n3", "down, drained, reserved"),
        ("PartitionTimeLimit", "longer than its partition allows"),
        ("AssocGrpCpuLimit", "of your account together have reached a limit (CPU)"),
        ("AssocGrpGRESRunMinutes", "(GRES run minutes)"),
        ("AssocMaxJobsLimit", "the maximum number of jobs that your account allows"),
        ("AssocMaxWallDurationPerJobLimit", "(wall duration per job)"),
        ("QOSMaxJobsPerUserLimit", "the maximum number of jobs that its quality of service allows"),
        ("QOSMaxGRESPerUser", "you or your account use as much"),
        (
            "QOSMaxNodePerJobLimit",
            "asks for more than its quality of service allows (node per job)",
        ),
        ("MaxMemoryPerAccount", "(memory per account)"),
        ("QOSMinCpuNotSatisfied", "asks for less than its quality of service requires (CPU)"),
        ("QOSGrpNodeLimit", "all jobs of its quality of service"),
    ],
)
def test_codes_of_slurm_in_plain_words(code: str, words: str) -> None:
    reason = explain(code)
    assert words in reason.meaning
    assert reason.advice


def test_a_code_that_is_not_known_is_shown_as_it_is() -> None:
    assert '"Prioritylike"' in explain("Prioritylike").meaning
    assert "{" not in explain("QOSNovelty{x}").meaning.replace("{x}", "")
