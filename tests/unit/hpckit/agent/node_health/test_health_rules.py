"""What is found on a node, judged."""

from __future__ import annotations

from typing import Any

import pytest

from hpckit.agent.node_health.health_rules import (
    GIB,
    NodeFacts,
    ProbeFault,
    ProgramOutput,
    RequiredGpus,
    clock_problem,
    problems,
    skew_s,
    wanted_gpus,
)
from hpckit.config.spec import HealthSpec
from tests.unit.hpckit.agent.node_health.test_nvidia import GPUS, LOG
from tests.unit.hpckit.specs_and_processes import make_spec

UUID = "GPU-77aa0f6c-53c1-4ee4-8a0e-5bb0f7c0e2d1"  # of the second of GPUS


def health(**changes: Any) -> HealthSpec:
    return make_spec({f"health.{key}": value for key, value in changes.items()}).health


def said(text: str, status: int = 0) -> ProgramOutput:
    return ProgramOutput(status, text, "")


def judged(facts: NodeFacts, wanted: RequiredGpus, **changes: Any) -> list[str]:
    return problems(facts, wanted, health(**changes))


def test_a_node_on_which_nothing_was_found_is_healthy() -> None:
    assert judged(NodeFacts(), RequiredGpus(8)) == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (RequiredGpus(1, ("0",)), []),
        (RequiredGpus(1, ("3",)), []),
        (
            RequiredGpus(1, ("1",)),
            [
                "GPU 1: pages of its memory wait for a reset to be retired",
                "GPU 1: 2 uncorrected memory errors, more than health.ecc_errors=0",
            ],
        ),
        (RequiredGpus(1, ("2",)), ["GPU 2: Unknown Error"]),
        (RequiredGpus(2, ("0", "4")), ["GPUs: nvidia-smi shows 1 of the 2 that the job was given"]),
        (RequiredGpus(5), ["GPUs: nvidia-smi shows 4 of the 5 that the job was given"]),
    ],
)
def test_only_the_jobs_own_gpus_count(wanted: RequiredGpus, found: list[str]) -> None:
    assert [p for p in judged(NodeFacts(gpus=said(GPUS)), wanted) if p in found] == found
    if wanted.names:
        assert judged(NodeFacts(gpus=said(GPUS)), wanted) == found


def test_each_look_at_gpus_can_be_left_out() -> None:
    mine, facts = RequiredGpus(2, (UUID, "GPU-not-there")), NodeFacts(gpus=said(GPUS))
    assert len(judged(facts, mine)) == 3
    assert judged(facts, mine, ecc_errors=2) == judged(facts, mine, ecc_errors=None)
    assert len(judged(facts, mine, ecc_errors=2)) == 2
    assert len(judged(facts, mine, gpus=False)) == 1
    rows = NodeFacts(gpus=said(GPUS), rows=said(f"{UUID}, 0, 1\nGPU-other, 1, 1\n"))
    assert judged(rows, mine)[-1] == "GPU 1: a row of its memory could not be remapped"


@pytest.mark.parametrize(
    ("answer", "count", "found"),
    [
        (None, 4, []),  # no such tool here
        (ProbeFault("no answer within 10 s"), 0, ["nvidia-smi: no answer within 10 s"]),
        (said("\nNo devices were found\n", 6), 0, []),  # a node without, that has the tool
        (
            said("\nNo devices were found\n", 6),
            4,
            ["nvidia-smi: exit status 6: No devices were found"],
        ),
        (said('Field "x" is not a valid field to query.\n', 2), 4, []),  # another version's
        (
            ProgramOutput(9, "", "\x1b[31mfailed\x07\n"),
            1,
            ["nvidia-smi: exit status 9: [31mfailed"],
        ),
        (ProgramOutput(9, "", ""), 1, ["nvidia-smi: exit status 9: it printed nothing"]),
    ],
)
def test_a_tool_that_fails_says_so_itself(answer: Any, count: int, found: list[str]) -> None:
    assert judged(NodeFacts(gpus=answer), RequiredGpus(count)) == found


def test_the_kernels_log_counts_for_gpus_that_are_lost_and_not_for_others_jobs() -> None:
    log, gone = said(LOG), "kernel log: Xid 79 of the GPU at 0:5e:00: GPU has fallen off the bus"
    facts = NodeFacts(kernel_log=log)
    assert judged(facts, RequiredGpus(0)) == [
        gone,
        "kernel log: Xid 48 of the GPU at 0:d8:00: double bit ECC error",
    ]
    shown = said("".join(line + "\n" for line in GPUS.splitlines() if "5E:00" not in line))
    assert judged(NodeFacts(gpus=shown, kernel_log=log), RequiredGpus(1, ("0",))) == [
        gone,
        "kernel log: Xid 48 of the GPU at 0:d8:00: double bit ECC error",
    ], "GPU 3 is at 1:d8:00"
    assert judged(NodeFacts(gpus=said(GPUS), kernel_log=log), RequiredGpus(1, ("0",)))[:1] != [gone]
    assert (
        judged(NodeFacts(kernel_log=said("dmesg: read kernel buffer failed", 1)), RequiredGpus(4))
        == []
    )


def test_disks_and_mounts() -> None:
    facts = NodeFacts(
        free={
            "disk of /a": GIB // 2,
            "disk of /b": 2 * GIB,
            "disk of /c": ProbeFault("stale handle"),
        },
        reached={"write to /a": ProbeFault("read-only file system"), "read /b": None},
    )
    assert judged(facts, RequiredGpus(0)) == [
        "disk of /a: 0.5 GiB free, less than health.disk_free_gib=1",
        "disk of /c: stale handle",
        "write to /a: read-only file system",
    ]
    assert len(judged(facts, RequiredGpus(0), disk_free_gib=0.25)) == 2


def test_a_clock_is_off_by_as_much_as_the_message_cannot_have_taken() -> None:
    assert skew_s(100.0, 90.0, 110.0) == 0.0
    assert skew_s(150.0, 90.0, 110.0) == 40.0
    assert skew_s(50.0, 90.0, 110.0) == -40.0
    assert clock_problem(29.0, health()) is None
    assert "40 s ahead of" in (clock_problem(40.0, health()) or "")
    assert "40 s behind" in (clock_problem(-40.0, health()) or "")
    assert clock_problem(1e9, health(clock_skew_s=None)) is None


def test_the_gpus_that_a_node_is_to_have() -> None:
    def wanted(device: str, *names: str, is_given: bool = True) -> RequiredGpus:
        spec = make_spec({"cluster.device": device, "launch.nproc_per_node": 4})
        return wanted_gpus(spec, names, is_given=is_given)

    assert wanted("cpu", "0", "1") == wanted("auto") == wanted("auto", "MIG-1") == RequiredGpus(0)
    assert wanted("cuda") == RequiredGpus(4)
    assert wanted("auto", "0", "1") == RequiredGpus(4, ("0", "1"))
    assert wanted("auto", "0", "1", is_given=False) == RequiredGpus(4), "there may be others'"
