from __future__ import annotations

import pytest

from hpckit.slurm.pending_reasons import explain, is_lasting, is_of_nodes


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


@pytest.mark.parametrize(
    ("sentence", "words", "lasts"),
    [
        ("job requeued in held state", "queued it again, but on hold", True),
        ("job_requeued_in_held_state", "queued it again, but on hold", True),  # by scontrol
        ("job requeued in special exit state", "ended with a status", True),
        ("launch failed requeued held", "a node could not start it", True),
        ("launch failure limit exceeded requeued held", "could not be started", True),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
            "partitions",
            "nodes that it needs are down",
            False,
        ),
        ("ReqNodeNotAvail, May be reserved for other job", "nodes that it needs are down", False),
        ("Reservation maint was deleted", "no longer exists", True),
        ("Reservation a_b is invalid", "is not valid for it", True),
        (
            "Job is at or exceeds QOS high's group wall limit of 5 with 9",
            "has reached a limit",
            False,
        ),
        (
            "uid 1000 not in group permitted to use this partition (g). groups allowed: x",
            "may not",
            True,
        ),
    ],
)
def test_sentences_in_place_of_codes(sentence: str, words: str, lasts: bool) -> None:
    reason = explain(sentence)
    assert words in reason.meaning
    assert (is_lasting(sentence), reason.advice != "") == (lasts, True)
    assert is_of_nodes(sentence) == ("nodes that it needs" in reason.meaning)


def test_a_code_that_is_not_known_is_shown_as_it_is() -> None:
    assert '"Prioritylike"' in explain("Prioritylike").meaning
    assert "{" not in explain("QOSNovelty{x}").meaning.replace("{x}", "")
