"""What the oracle says of losses: histories by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from data.order.skipped_ranges import SkippedRanges
from hpckit.events.schema import Event, event_of
from hpckit.faults.campaign.cured_reference import Cures, cure_problems, cures_of_spec
from hpckit.faults.campaign.fault_log import RecordedFault
from hpckit.faults.campaign.oracle import loss_problems, naming_problems
from hpckit.faults.fault_plan import DrillKind
from hpckit.report.history import History, build_history
from hpckit.rundir.sample_ledger import LedgerEntry
from hpckit.submit.compose import compose_spec

STEPS = 6


def history(*lives: tuple[int, int, Mapping[int, float]]) -> History:
    """Of lives: (ranks, the step that it began after, the losses that it told)."""
    events = []
    for number, (world, start, losses) in enumerate(lives, 1):
        begun = {"generation": number, "world_size": world, "step": start}
        events.append(event_of(100.0 * number, "training_started", begun))
        events += [
            event_of(100.0 * number + step, "step", told(number, step, loss))
            for step, loss in losses.items()
        ]
    return build_history(events)


def told(generation: int, step: int, loss: float) -> dict[str, float]:
    return {"generation": generation, "step": step, "loss": loss, "step_s": 0.2}


def losses(*, of: range = range(1, STEPS + 1), **other: float) -> dict[int, float]:
    """A loss of each step `of`, but for those that are named, as in s3=math.nan."""
    return {step: other.get(f"s{step}", 1.0 / step) for step in of}


WHOLE = history((2, 0, losses()))


def test_a_loss_that_is_no_number_is_none_of_the_undisturbed_runs() -> None:
    found = loss_problems(history((2, 0, losses(s3=math.nan))), WHOLE, STEPS)
    assert found == [f"step 3: loss nan, and {1 / 3!r} undisturbed"]
    mine = history((2, 0, losses(of=range(1, 3))), (1, 2, losses(of=range(3, 7), s5=math.nan)))
    assert len(loss_problems(mine, WHOLE, STEPS)) == 1
    none = history((2, 0, losses(s3=math.nan)))
    assert len(loss_problems(none, none, STEPS)) == 1


def test_losses_are_exact_until_other_ranks_train() -> None:
    def after_step_4(**other: float) -> History:
        first = losses(of=range(1, 5), **other)
        return history((2, 0, first), (1, 4, losses(of=range(5, 7), **other)))

    assert loss_problems(after_step_4(), WHOLE, STEPS) == []
    assert loss_problems(after_step_4(s6=1 / 6 + 1e-6), WHOLE, STEPS) == []
    assert len(loss_problems(after_step_4(s6=1 / 6 + 1e-2), WHOLE, STEPS)) == 1
    (found,) = loss_problems(after_step_4(s2=0.5 + 1e-6), WHOLE, STEPS)
    assert found.startswith("step 2: ")


def test_what_other_ranks_trained_in_vain_does_not_count() -> None:
    first, again = losses(of=range(1, 5)), losses(of=range(4, 7), s5=1 / 5 + 1e-6)
    in_vain = (1, 3, losses(of=range(4, 6)))
    (found,) = loss_problems(history((2, 0, first), in_vain, (2, 3, again)), WHOLE, STEPS)
    assert found.startswith("step 5: ")
    assert loss_problems(history((2, 0, first), in_vain, (2, 4, again)), WHOLE, STEPS) == []


def wrong(time: float, *ranks: int) -> Event:
    named = {"ranks": list(ranks), "hosts": [], "nodes": [], "tensors": [], "what": ""}
    how = {"is_persistent": True, "is_excluded": False}
    return event_of(time, "wrong_computation", {"step": 9, "good_step": 4, **named, **how})


def certified(time: float) -> Event:
    fields = {"how": "bits", "tensors": 1, "seconds": 0.1, "step_s": 0.1, "next_step": 9}
    return event_of(time, "certified", {"step": 5, **fields})


def hang(time: float, *ranks: int) -> Event:
    fields = {"step": 5, "cause": "stuck", "text": "", "hosts": [], "waiting": 1, "examined": 2}
    return event_of(
        time, "hang_explained", {**fields, "culprits": list(ranks), "seconds": 1.0, "snapshots": ""}
    )


FAULTS = (
    RecordedFault(10.0, DrillKind.WRONG, 8, "rank 1 computes wrongly", rank=1),
    RecordedFault(20.0, DrillKind.STALL, 12, "rank 0 waits", rank=0),
    RecordedFault(30.0, DrillKind.WORKER, 15, "rank 0 is killed"),
)


def test_the_rank_has_to_be_named_before_the_next_fault() -> None:
    assert naming_problems([certified(12.0), wrong(15.0, 0, 1), hang(25.0, 0)], FAULTS) == []
    (found,) = naming_problems([wrong(15.0, 1), hang(25.0, 1)], FAULTS)
    assert found == "step 12: rank 0 waits; the run has named [1]"
    (found,) = naming_problems([wrong(15.0, 1), hang(31.0, 0)], FAULTS)
    assert found == "step 12: rank 0 waits; the run has not said so"
    passed = [certified(11.0), certified(12.0), wrong(15.0, 1), hang(25.0, 0)]
    (found,) = naming_problems(passed, FAULTS)
    assert found == "step 8: rank 1 computes wrongly; 2 checks have passed since"
    late = replace(FAULTS[0], caused=11.5)  # one of the checks was before it
    assert naming_problems(passed, [late, *FAULTS[1:]]) == []


def test_a_step_without_its_update_has_a_loss_of_its_own() -> None:
    mine = history((2, 0, losses(s3=500.0)))
    assert loss_problems(mine, WHOLE, STEPS, without_update=[3]) == []
    assert len(loss_problems(mine, WHOLE, STEPS, without_update=[4])) == 1


SPIKE = {"first_position": 16, "end_position": 24, "what": "loss is 500", "is_left_out": True}


def spiky(first_step: int, step: int, *poisoned: int) -> list[Event]:
    """Steps of 8 samples, of which rank 1 has poisoned those of its half."""
    found = [event_of(1.0, "training_started", {"generation": 1, "world_size": 2, "step": 0})]
    for number in poisoned:
        positions = [8 * number - 4, 8 * number - 1]
        fields = {"step": number, "positions": positions}
        found.append(event_of(2.0, "samples_poisoned", fields))
    fields = {**SPIKE, "first_step": first_step, "step": step}
    return [*found, event_of(3.0, "spike", fields)]


def test_only_what_was_poisoned_is_left_out_and_all_of_it() -> None:
    sound = [LedgerEntry(3, 1, 0, 1, (16, 24, 25), ("a", "b", "c"))]
    assert cure_problems(spiky(3, 3, 3), sound) == []
    (found,) = cure_problems(spiky(2, 3, 3), sound)
    assert found == "step 2: it was left out (loss is 500), but its samples are sound"
    nan = RecordedFault(2.5, DrillKind.NAN, 2, "a NaN")
    assert cure_problems(spiky(3, 3), sound, [nan]) == [], "its loss is NaN, which is a spike"
    taken = [LedgerEntry(5, 1, 1, 0, (23, 30), ("a", "b"))]
    assert cure_problems(spiky(3, 3, 3), taken) == ["step 5: the sample at position 23 is poisoned"]
    skipped = event_of(3.0, "update_skipped", {"step": 3, "what": "", "is_skipped": True})
    assert cure_problems([*spiky(3, 3, 3)[:-1], skipped], taken) == [], "its update was left out"


def test_the_reference_leaves_out_the_same() -> None:
    cures = Cures(SkippedRanges([(16, 24), (40, 48)]), (3, 9))
    spec = compose_spec(["experiment=campaign", "heal=skip", *cures.overrides])
    assert cures_of_spec(spec) == cures
    assert spec.heal.on_spike is None
    assert cures_of_spec(compose_spec(["experiment=campaign"])) == Cures()
