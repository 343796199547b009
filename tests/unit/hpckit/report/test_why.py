from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpckit.agent.verdict_record import VerdictKind
from hpckit.events.event_log import Event
from hpckit.events.schema import event_of
from hpckit.report.overview import Overview
from hpckit.report.progress import build_progress
from hpckit.report.run_state import RunState
from hpckit.report.terminal.status_table import page_of
from hpckit.report.why import RetryBudget, commands, explain_run
from hpckit.rundir.directory import RunDir
from hpckit.slurm.squeue import parse_queue
from tests.unit.hpckit.specs_and_processes import make_spec

NOW = 2000.0
EVENTS = [
    event_of(1000, "run_started", {"job": "1", "steps": 100}),
    event_of(1001, "checkpoint_committed", {"step": 40}),
]


def overview(
    state: RunState,
    *jobs: str,
    verdict: dict[str, Any] | None = None,
    problem: str | None = None,
    events: Sequence[Event] = EVENTS,
    continuation: str = "chain",
) -> Overview:
    return Overview(
        run=RunDir(Path("/runs/t 1")),
        spec=make_spec({"launch.continuation": continuation}, "slurm"),
        state=state,
        verdict=verdict,
        progress=build_progress(events),
        numbers=("1", "2"),
        jobs=tuple(parse_queue("\n".join(jobs))),
        owner=None,
        problem=problem,
    )


def facts(it: Overview, budget: RetryBudget | None = None) -> dict[str, str]:
    return {fact.name: fact.text for fact in explain_run(it, budget, NOW).facts}


def test_a_job_that_waits_is_told_with_its_reason_and_its_time() -> None:
    told = facts(overview(RunState.WAITING, "2|PENDING|2600|N/A|1:00|2|low||(null)|Resources|t"))
    assert told["waits"].startswith("job 2, Resources: it is next in the queue")
    assert "in 10 min, or earlier" in told["begins"]
    assert told["next"] == "it continues automatically from the checkpoint at step 40"
    singleton = "2|PENDING|N/A|N/A|1:00|2|low||singleton(unfulfilled)|Dependency|t"
    told = facts(overview(RunState.WAITING, singleton))
    assert "the previous job of this run has not ended" in told["waits"]
    assert "has not estimated a start time" in told["begins"]


def test_a_job_that_waits_for_excluded_nodes_is_told_with_them_and_how_to_give_them_back() -> None:
    queued = [*EVENTS, event_of(1002, "successor_queued", {"job": "2"})]
    out = event_of(1003, "nodes_excluded", {"job": "2", "hosts": ["n7"]})
    back = {"job": "2", "hosts": ["n7"], "reason": "r"}
    job = "2|PENDING|N/A|N/A|1:00|2|low||(null)|BadConstraints|t"
    told = facts(overview(RunState.WAITING, job, events=[*queued, out]))
    assert told["waits"].startswith("job 2, BadConstraints: hpckit excludes n7 from it, and the")
    assert told["to do"].startswith("scontrol update jobid=2 excnodelist= lets it have n7 again")
    assert told["next"] == (
        "it continues from the checkpoint at step 40 when Slurm has nodes for its job (see: to do)"
    )
    first = facts(overview(RunState.WAITING, job, events=[*EVENTS, out]))
    assert first["waits"] == told["waits"], "a person's job, submitted without a suspect"
    for events in (queued, [*queued, out, event_of(1004, "exclusion_withdrawn", back)]):
        assert "no node can ever" in facts(overview(RunState.WAITING, job, events=events))["waits"]
    other = job.replace("BadConstraints", "Priority")
    told = facts(overview(RunState.WAITING, other, events=[*queued, out]))
    assert "excludes" not in told["waits"]


def test_a_run_that_died_is_told_what_slurm_remembers_of_its_job() -> None:
    it = overview(RunState.DEAD, "1|TIMEOUT|1000|1900|15:00|2|low|n[1-2]|(null)|TimeLimit|t")
    assert facts(it)["why"].startswith("job 1, TIMEOUT: it ran into its time limit")
    assert explain_run(it, None, NOW).commands == (
        "hpckit logs '/runs/t 1'",
        "hpckit resume '/runs/t 1'",
    )
    assert "ended without a verdict" in facts(overview(RunState.DEAD))["why"]


def test_a_failure_is_told_with_its_place_and_what_was_tried() -> None:
    error = {"traceback": '  File "/x/a.py", line 3, in main\n'}
    verdict = {"kind": "crash", "reason": "boom", "error": error, "generation": 3, "submission": 1}
    it = overview(RunState.ENDED, verdict={**verdict, "time": 1940.0, "final": True})
    told = facts(it, RetryBudget("retry.crash", 3, 2))
    assert told["verdict"] == "generation 3, 60 s ago: crash: boom"
    assert told["where"] == "/x/a.py:3, in main"
    assert told["budget"].startswith("failed 3 times in a row")
    assert "retry.crash=2" in told["budget"]
    once = facts(it, RetryBudget("retry.crash", 1, 2))["budget"]
    assert once.startswith("failed once without a new checkpoint")
    assert explain_run(it, None, NOW).commands[0] == "hpckit logs '/runs/t 1' --first-error"


@pytest.mark.parametrize("kind", VerdictKind)
def test_every_kind_of_end_is_told_in_words(kind: VerdictKind) -> None:
    verdict = {"kind": kind.value, "reason": "boom", "generation": 3, "submission": 1}
    it = overview(RunState.ENDED, verdict={**verdict, "time": 1940.0, "final": True})
    meaning = facts(it)["state"].partition(": ")[2]
    assert meaning.partition(",")[0] not in ("ended", "")
    assert not any("--first-error" in line for line in explain_run(it, None, NOW).commands) or (
        kind is VerdictKind.PERMANENT
    )


def test_a_lack_of_memory_is_no_reason_to_try_the_same_again() -> None:
    verdict = {"kind": "oom", "reason": "boom", "generation": 3, "submission": 1}
    it = overview(RunState.ENDED, verdict={**verdict, "time": 1940.0, "final": True})
    told = facts(it, RetryBudget("retry.oom", 2, 1))
    assert told["next"].startswith(
        "run the same launch command again with settings that need less memory"
    )
    assert "retry.oom=1" in told["budget"]


SAID = "no job can be queued to go on after this one, tried again each 15 s: QOSMaxSubmitJobLimit"
REFUSED = event_of(1002, "degraded", {"what": SAID})
QUEUED = event_of(1003, "successor_queued", {"job": "2"})
CANCELLED = event_of(1004, "successor_cancelled", {"job": "2"})
RUNS = "1|RUNNING|1000|1900|15:00|2|low|n[1-2]|(null)|None|t"
WAITS = "2|PENDING|N/A|N/A|1:00|2|low||singleton(unfulfilled)|Dependency|t"


@pytest.mark.parametrize(
    ("continuation", "told", "jobs", "reason"),
    [
        ("chain", [REFUSED, QUEUED], [RUNS, WAITS], None),
        ("chain", [QUEUED], [], None),  # Slurm does not answer
        ("requeue", [], [RUNS], None),
        ("chain", [REFUSED], [RUNS], REFUSED["what"]),
        (
            "requeue",
            [event_of(1002, "degraded", {"what": "no other is queued"})],
            [RUNS],
            "no other",
        ),
        ("chain", [], [RUNS], "its supervisor has not reported a successor job yet"),
        (
            "chain",
            [QUEUED],
            [RUNS],
            "job 2, which was to continue the run, is no longer in Slurm's queue",
        ),
        ("chain", [QUEUED, CANCELLED], [RUNS], "job 2 was cancelled"),
        ("none", [], [RUNS], "launch.continuation=none"),
    ],
)
def test_a_run_with_nothing_after_it_is_not_said_to_go_on_by_itself(
    continuation: str, told: list[Event], jobs: list[str], reason: str | None
) -> None:
    it = overview(RunState.RUNNING, *jobs, events=[*EVENTS, *told], continuation=continuation)
    following = facts(it)["next"]
    page = dict(page_of(it, NOW))
    if reason is None:
        assert following.startswith(
            "after an interruption it continues automatically from the checkpoint at step"
        )
        assert ("; job 2 follows" in following) == (continuation == "chain")
        assert it.record()["no_successor"] is None
        assert "successor" not in page
    else:
        assert f"but only within this job; no successor is queued: {reason}" in following
        assert it.record()["no_successor"].startswith(reason)
        assert str(page["successor"]).startswith(f"none is queued: {reason}")
    waiting = overview(RunState.WAITING, *jobs, events=[*EVENTS, *told], continuation=continuation)
    assert waiting.no_successor is None


def test_what_is_not_known_is_said() -> None:
    told = facts(overview(RunState.UNKNOWN, problem="Slurm does not answer: no answer"))
    assert told["note"] == "Slurm does not answer: no answer"
    assert "because Slurm does not answer" in told["state"]


def test_a_run_without_a_spec_is_not_advised_to_resume() -> None:
    it = replace(overview(RunState.DEAD, problem="spec.yaml: not valid YAML"), spec=None)
    assert commands(it) == ("hpckit logs '/runs/t 1'",)
    assert "run the same launch command again" in facts(it)["next"]


def test_a_dependency_on_a_job_that_is_not_of_the_run_is_told_as_such() -> None:
    waits = "2|PENDING|N/A|N/A|1:00|2|low||afterany:{}(unfulfilled)|Dependency|t"
    it = overview(RunState.WAITING, RUNS, waits.format("1"))
    assert facts(it)["waits"].endswith("the previous job of this run has not ended yet")
    it = overview(RunState.WAITING, RUNS, waits.format("77"))
    assert facts(it)["waits"].endswith("it waits for job 77, not of this run")
    assert facts(it)["to do"].endswith("scontrol update JobId=2 Dependency=")
    (twin,) = parse_queue(WAITS.replace("2|", "9|", 1))
    it = replace(overview(RunState.WAITING, WAITS), same_name_jobs=(twin,))
    assert "it waits for job 9 of the same name, not of this run" in facts(it)["waits"]


def test_a_state_that_is_not_known_is_named() -> None:
    it = overview(RunState.UNKNOWN, "2|HIBERNATING|N/A|N/A|1:00|2|low||(null)|None|t")
    assert "job 2 is in state HIBERNATING" in facts(it)["state"]
    assert "Slurm reports another state" in facts(it)["next"]


ENDED = event_of(1002, "run_ended", {"verdict": "preempted", "status": 75})
NO_OTHER = event_of(
    1003,
    "degraded",
    {"subject": "successor", "what": "no successor job is queued: QOSMaxSubmitJobPerUserLimit"},
)
VERDICT = {"kind": "preempted", "reason": "every rank saved", "generation": 1, "submission": 1}
PREEMPTED = "1|PREEMPTED|1000|1900|15:00|2|low|n[1-2]|(null)|None|t"


@pytest.mark.parametrize("jobs", [[PREEMPTED], []])
def test_a_run_whose_successor_was_refused_is_told_by_what_and_what_helps(jobs: list[str]) -> None:
    it = overview(
        RunState.DEAD,
        *jobs,
        verdict={**VERDICT, "time": 1940.0, "final": False},
        events=[*EVENTS, ENDED, NO_OTHER],
    )
    told = facts(it)
    assert told["why"].startswith("job 1 ended (preemption), and no job continues the run: ")
    assert "QOSMaxSubmitJobPerUserLimit" in told["why"]
    assert "as many jobs in the queue as your account" in told["refusal"]
    assert told["to do"].startswith("launch.continuation=requeue")
    assert told["to do"].endswith("hpckit resume '/runs/t 1'")


def test_the_newest_cause_is_told() -> None:
    later = "2|CANCELLED|1000|1900|15:00|2|low||(null)|None|t"
    told = facts(overview(RunState.DEAD, PREEMPTED, later, events=[*EVENTS, QUEUED, ENDED]))
    assert told["why"] == "job 2, CANCELLED: it was cancelled, before its supervisor began"
    refused = event_of(1010, "job_refused", {"error": "sbatch: error: Invalid account"})
    it = overview(RunState.DEAD, events=[*EVENTS, ENDED, NO_OTHER, refused])
    assert facts(it)["refused"].endswith("submitted last: sbatch: error: Invalid account")
    assert facts(it)["to do"].startswith("set cluster.slurm.account")
    begun = event_of(1011, "run_started", {"job": "2", "steps": 100})
    assert "refused" not in facts(overview(RunState.DEAD, events=[*it_events(refused), begun]))


def it_events(*more: Event) -> list[Event]:
    return [*EVENTS, ENDED, *more]


def test_a_run_that_was_given_up_is_not_said_to_have_an_error() -> None:
    reason = "5 jobs in a row gave no new checkpoint (retry.jobs_without_checkpoint=5)"
    verdict = {**VERDICT, "kind": "permanent", "reason": reason, "time": 1940.0, "final": True}
    it = overview(RunState.ENDED, verdict=verdict)
    assert "its jobs gave no new checkpoint" in facts(it)["state"]
    assert "hpckit resume, with other values" in facts(it)["next"]
    assert explain_run(it, None, NOW).commands[-1] == "hpckit resume '/runs/t 1'"


HELD = {"job": "2", "reason": "JobHeldUser: its owner has put it on hold", "advice": "release it"}


@pytest.mark.parametrize(
    ("told", "waits", "what", "advice"),
    [
        ([QUEUED], WAITS, None, None),
        ([QUEUED], WAITS.replace("Dependency", "JobHeldUser"), "", ""),
        ([QUEUED, event_of(1004, "successor_blocked", HELD)], WAITS, HELD["reason"], "release it"),
        (
            [
                QUEUED,
                event_of(1004, "successor_blocked", HELD),
                event_of(1005, "successor_unblocked", {"job": "2"}),
            ],
            WAITS,
            None,
            None,
        ),
        ([QUEUED, event_of(1004, "successor_blocked", HELD | {"job": "3"})], WAITS, None, None),
    ],
)
def test_a_running_job_whose_successor_cannot_start_says_so(
    told: list[Event], waits: str, what: str | None, advice: str | None
) -> None:
    it = overview(RunState.RUNNING, RUNS, waits, events=[*EVENTS, *told])
    found, page = facts(it), dict(page_of(it, NOW))
    assert ("blocked" in page) is ("successor" in found) is ("to do" in found) is (what is not None)
    follows = found["next"].partition("checkpoint at step 40")[2]
    if what is None:
        assert follows == "; job 2 follows"
        assert it.record()["successor_blocked"] is None
        return
    assert follows == ", but only within this job: job 2 cannot start"
    assert found["successor"] == f"job 2 cannot start: {it.record()['successor_blocked']}"
    assert what in found["successor"]
    assert (advice or "scontrol release 2") == found["to do"]


def test_a_job_that_waits_for_somebody_to_act_does_not_continue_automatically() -> None:
    it = overview(RunState.WAITING, "2|PENDING|N/A|N/A|1:00|2|low||(null)|PartitionDown|t")
    assert facts(it)["next"] == (
        "it continues from the checkpoint at step 40 when its job can start (see: to do)"
    )


def test_status_and_why_tell_the_same_problems() -> None:
    told = [
        event_of(1002, "replicas_differ", {"step": 40, "summary": "model/w on rank 1"}),
        event_of(1003, "wrong_computation", {"step": 50, "what": "rank 3 computes wrongly"}),
    ]
    it = overview(RunState.RUNNING, RUNS, events=[*EVENTS, *told], problem="Slurm is silent")
    found, page = facts(it), dict(page_of(it, NOW))
    for name, words in (
        ("replicas differ", "at step 40: model/w on rank 1"),
        ("wrong rank", "rank 3 computes wrongly"),
        ("note", "Slurm is silent"),
    ):
        assert found[name] == page[name] == words


def test_a_program_that_reports_nothing_is_told_without_steps() -> None:
    done = {"kind": "done", "reason": "the program has ended on every rank", "generation": 1}
    begun = event_of(1000, "run_started", {})
    it = overview(RunState.ENDED, verdict=done | {"time": NOW}, events=[begun])
    program = make_spec({"entry": None, "command.arguments": ["true"]}, command="program")
    it = replace(it, spec=program)
    assert facts(it)["state"] == "done: the program has ended"
    shown = dict(page_of(it, NOW))
    assert [shown["step"], shown["saved"]] == ["none reported by the program"] * 2
