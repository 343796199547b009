"""Which events of a run are reported, and as what."""

from __future__ import annotations

import pytest

from hpckit.alerts.alert_occasions import AlertOccasion, OccasionFinder
from hpckit.events.schema import Event, event_of


def occasions(*events: tuple[str, dict[str, object]]) -> list[AlertOccasion]:
    finder = OccasionFinder()
    found = [finder.find(at(n, kind, **fields)) for n, (kind, fields) in enumerate(events)]
    return [one for one in found if one is not None]


def at(time: float, kind: str, **fields: object) -> Event:
    return event_of(time, kind, fields)


def ended(verdict: str, *, final: bool) -> tuple[str, dict[str, object]]:
    reason = {"reason": "rank 3 raised ValueError", "final": final, "step": 5, "generation": 1}
    return "generation_ended", {"verdict": verdict, **reason}


STARTED: tuple[str, dict[str, object]] = ("run_started", {"steps": 10})


def over(verdict: str) -> tuple[str, dict[str, object]]:
    return "run_ended", {"verdict": verdict}


@pytest.mark.parametrize(
    ("events", "kinds"),
    [
        ([STARTED, ended("done", final=True), over("done")], ["done"]),
        ([STARTED, ended("crash", final=True), over("crash")], ["verdict"]),
        ([STARTED, ended("stopped", final=True), over("stopped")], ["verdict"]),
        ([STARTED, ended("crash", final=False)], ["interrupted"]),
        ([STARTED, ended("preempted", final=False), over("preempted")], ["interrupted"]),
        ([STARTED, ended("infra", final=False), over("infra")], ["interrupted", "interrupted"]),
        # the jobs have used up their budget: another verdict than that of the generation
        ([STARTED, ended("preempted", final=False), over("permanent")], ["verdict"]),
        ([STARTED, ("run_failed", {"error": "OSError: full"})], ["verdict"]),
        ([STARTED, STARTED], ["verdict"]),
        ([STARTED, over("preempted"), STARTED], ["interrupted"]),
        ([STARTED, ("run_failed", {"error": "x"}), STARTED], ["verdict"]),
        ([("run_refused", {"error": "held"})], []),
        ([("step", {"step": 1, "step_s": 0.1})], []),
    ],
)
def test_an_end_is_reported_by_its_kind(
    events: list[tuple[str, dict[str, object]]], kinds: list[str]
) -> None:
    assert [one.kind for one in occasions(*events)] == kinds


@pytest.mark.parametrize(
    ("event", "kind", "words"),
    [
        (
            ("successor_blocked", {"job": "8", "reason": "JobHeldUser: on hold", "advice": "a"}),
            "degraded",
            "job 8, which is to continue the run, cannot start: JobHeldUser: on hold; a",
        ),
        (
            ("degraded", {"subject": "tracker", "what": "W&B cannot be reached"}),
            "degraded",
            "W&B cannot be reached",
        ),
        (
            ("degraded", {"subject": "checkpoint_progress", "what": "2 jobs gave no checkpoint"}),
            "no_progress",
            "2 jobs gave no checkpoint",
        ),
        (
            ("hang", {"step": 7, "local_ranks": [1], "stacks": ["/r/s.txt"], "phase": "step"}),
            "no_progress",
            "finished no step after step 7",
        ),
        (
            ("node_unhealthy", {"node": 2, "host": "gpu7", "problems": ["GPU 3: lost"]}),
            "degraded",
            "node gpu7 is left out: GPU 3: lost",
        ),
        (
            (
                "spike",
                {
                    **{"first_step": 40, "step": 42, "what": "loss is 9, above the limit 3"},
                    **{"first_position": 160, "end_position": 172, "is_left_out": True},
                },
            ),
            "degraded",
            "steps 40 to 42: loss is 9, above the limit 3; positions 160 to 171 are left out",
        ),
    ],
)
def test_trouble_is_reported_by_its_kind(
    event: tuple[str, dict[str, object]], kind: str, words: str
) -> None:
    (found,) = occasions(event)
    assert found.kind == kind
    assert found.what is not None
    assert words in found.what


def test_the_same_trouble_has_the_same_key_and_an_end_has_its_own() -> None:
    def of(what: str) -> tuple[str, dict[str, object]]:
        return "degraded", {"subject": "tracker", "what": what}

    first, second, other = occasions(of("try 1 failed"), of("try 2 failed"), of("no disk"))
    assert first.key == second.key != other.key
    one, another = occasions(STARTED, over("crash"), STARTED, over("crash"))
    assert one.key != another.key
