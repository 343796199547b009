"""What retention keeps, as tables and as properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing import Best, Buckets, Every, Last, Only, Unevaluated, decide, parse_keep
from checkpointing.retention import Decision, KeepPolicy

HOUR = 3600.0


@dataclass(frozen=True)
class Ckpt:
    step: int
    id: str
    created: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    is_suspect: bool = False
    certified: str = ""


def at(*steps: int) -> list[Ckpt]:
    return [Ckpt(step, str(step)) for step in steps]


def whole(decisions: dict[str, Decision]) -> dict[str, tuple[str, ...]]:
    """Ids that stay whole, and why."""
    return {id_: d.reasons for id_, d in decisions.items() if d.items is None}


def going(decisions: dict[str, Decision]) -> set[str]:
    return {id_ for id_, decision in decisions.items() if decision.goes}


def test_last_and_every_join() -> None:
    decisions = decide(at(0, 5, 10, 12, 20, 25, 27), [Last(2), Every(10)])
    assert whole(decisions) == {
        "27": ("newest", "last 2"),
        "25": ("last 2",),
        "20": ("every 10 steps",),
        "10": ("every 10 steps",),
        "0": ("every 10 steps",),
    }
    assert going(decisions) == {"5", "12"}
    assert decisions["5"].reasons == ("no policy keeps it",)


def test_the_newest_whose_replicas_agree_stays() -> None:
    """However many come after it; and where none is such, no other one stays for that."""
    bad = [Ckpt(step, str(step), is_suspect=True) for step in (30, 40, 50)]
    decisions = decide([*at(10, 20), *bad], [Last(1)])
    assert whole(decisions) == {
        "50": ("newest", "last 1"),
        "20": ("newest whose replicas agree",),
    }
    assert set(whole(decide(bad, [Last(1)]))) == {"50"}
    assert set(whole(decide([*at(60), *bad], [Last(1)]))) == {"60"}


def test_the_newest_certified_one_stays() -> None:
    certified = [Ckpt(step, str(step), certified="bits") for step in (10, 20)]
    decisions = decide([*certified, *at(30, 40)], [Last(1)])
    assert whole(decisions) == {"40": ("newest", "last 1"), "20": ("newest certified",)}
    certified[1] = replace(certified[1], is_suspect=True)
    assert "10" in whole(decide([*certified, *at(30, 40)], [Last(1)])), "20 is not restored"


def test_every_takes_the_first_at_or_after_a_multiple() -> None:
    assert set(whole(decide(at(3, 9, 12, 15, 31), [Every(10)]))) == {"12", "31"}


def test_best_by_metric() -> None:
    values = {1: 0.5, 2: 0.1, 3: float("nan"), 4: 0.1, 6: 0.9}
    found = [Ckpt(s, str(s), metrics={"loss": v}) for s, v in values.items()] + at(5, 7)
    assert set(whole(decide(found, [Best("loss")]))) == {"7", "4"}
    assert set(whole(decide(found, [Best("loss", n=2)]))) == {"7", "4", "2"}
    assert set(whole(decide(found, [Best("loss", mode="max")]))) == {"7", "6"}
    assert set(whole(decide(found, [Best("other")]))) == {"7"}


def test_buckets_keep_the_newest_of_each_of_the_last_periods() -> None:
    hours = [0.1, 0.9, 1.5, 5.0, 5.2, 5.9, 6.1]  # saved then, one step after the other
    found = [Ckpt(step, str(step), created=h * HOUR) for step, h in enumerate(hours)]
    assert whole(decide(found, [Buckets(3, HOUR)])) == {
        "6": ("newest", "one per hour"),
        "5": ("one per hour",),
        "2": ("one per hour",),
    }
    assert set(whole(decide(found, [Buckets(9, HOUR)]))) == {"6", "5", "2", "1"}
    assert set(whole(decide(found, [Buckets(1, 24 * HOUR)]))) == {"6"}
    assert whole(decide(found, [Buckets(1, 90.0)]))["6"] == ("newest", "one per 90 s")


def test_what_waits_for_its_evaluation_stays_until_it_has_a_metric_or_is_too_old() -> None:
    found = [
        Ckpt(10, "waits", 100.0),
        Ckpt(20, "evaluated", 110.0, {"loss": 1.0, "eval_accuracy": 0.5}),
        Ckpt(25, "not chosen", 120.0),
        Ckpt(0, "too old", 59.0),
        Ckpt(31, "newest", 160.0),
    ]
    decisions = decide(found, [Last(1), Unevaluated(10, 100.0)])
    assert going(decisions) == {"evaluated", "not chosen", "too old"}
    assert whole(decisions)["waits"] == ("not evaluated yet",)


def test_only_keeps_items_of_what_its_policy_keeps() -> None:
    decisions = decide(at(0, 10, 20, 25), [Last(1), Only(("model",), Every(10))])
    assert decisions == {
        "25": Decision(None, ("newest", "last 1")),
        "20": Decision(("model",), ("model of every 10 steps",)),
        "10": Decision(("model",), ("model of every 10 steps",)),
        "0": Decision(("model",), ("model of every 10 steps",)),
    }
    policies = [Only(("model", "ema"), Every(20)), Only(("optimizer", "model"), Last(3))]
    decisions = decide(at(0, 10, 20, 25), policies)
    assert decisions["20"].items == ("ema", "model", "optimizer")
    assert decisions["10"].items == ("model", "optimizer")
    assert decisions["25"].items is None, "the newest stays whole, whatever only wants a part"


def test_whoever_wants_all_of_it_outweighs_whoever_wants_a_part() -> None:
    decisions = decide(at(10, 20, 30), [Only(("model",), Last(3)), Every(20)])
    assert decisions["20"] == Decision(None, ("every 20 steps",))
    assert decisions["10"] == Decision(("model",), ("model of last 3",))


def test_pins_stay_whole_whatever_the_policies_say() -> None:
    pins = {"10": "pinned: before the spike", "99": "of a checkpoint that is not there"}
    decisions = decide(at(10, 20, 30), [Last(1), Only(("model",), Last(3))], pins)
    assert decisions["10"] == Decision(None, ("pinned: before the spike",))
    assert decisions["20"].items == ("model",)
    assert decisions.keys() == {"10", "20", "30"}


def test_same_step_twice_the_later_one_is_newer() -> None:
    found = [Ckpt(5, "new", created=2.0), Ckpt(5, "old", created=1.0)]
    decisions = decide(found, [Last(1)])
    assert whole(decisions) == {"new": ("newest", "last 1")}
    assert going(decisions) == {"old"}


def test_no_policies_keep_everything() -> None:
    assert whole(decide(at(1, 2), [])) == dict.fromkeys(("1", "2"), ("nothing is pruned",))
    assert decide([], [Last(1)]) == {}


COUNTS = st.integers(1, 5)
WHOLE = st.one_of(
    st.builds(Last, COUNTS),
    st.builds(Every, st.integers(1, 30)),
    st.builds(Best, st.just("loss"), st.sampled_from(["min", "max"]), st.integers(1, 3)),
    st.builds(Buckets, COUNTS, st.sampled_from([1.0, 3.5, 10.0])),
    st.builds(Unevaluated, COUNTS, st.sampled_from([1.0, 3.5, 100.0])),
)
ITEMS = st.lists(st.sampled_from(["model", "optimizer", "ema"]), min_size=1, max_size=2)
POLICIES = st.lists(WHOLE | st.builds(Only, ITEMS.map(tuple), WHOLE), max_size=3)
CHECKPOINTS = st.lists(st.tuples(st.integers(0, 100), st.floats() | st.none()), max_size=20).map(
    lambda rows: [
        Ckpt(step, f"{step}-{i}", float(i), {} if loss is None else {"loss": loss})
        for i, (step, loss) in enumerate(rows)
    ]
)


def stays(decision: Decision) -> set[str]:
    """Items; all of them are "*"."""
    return {"*"} if decision.items is None else set(decision.items)


@given(CHECKPOINTS, POLICIES)
def test_a_decision_is_the_union_of_those_of_each_policy(
    found: list[Ckpt], policies: list[KeepPolicy]
) -> None:
    decisions = decide(found, policies)
    assert decisions.keys() == {c.id for c in found}
    assert all(decision.reasons for decision in decisions.values())
    if not policies:
        assert not going(decisions)
        return
    alone = [decide(found, [policy]) for policy in policies]
    for id_, decision in decisions.items():
        wanted = set().union(*(stays(one[id_]) for one in alone))
        assert stays(decision) == ({"*"} if "*" in wanted else wanted)


@given(CHECKPOINTS, POLICIES)
def test_the_order_of_checkpoints_and_policies_is_of_no_account(
    found: list[Ckpt], policies: list[KeepPolicy]
) -> None:
    one, other = decide(found, policies), decide(found[::-1], policies[::-1])
    assert {id_: stays(d) for id_, d in one.items()} == {id_: stays(d) for id_, d in other.items()}


@given(CHECKPOINTS, POLICIES)
def test_pruning_again_removes_nothing_more(found: list[Ckpt], policies: list[KeepPolicy]) -> None:
    decisions = decide(found, policies)
    left = [c for c in found if not decisions[c.id].goes]
    again = decide(left, policies)
    assert {id_: stays(d) for id_, d in again.items()} == {
        c.id: stays(decisions[c.id]) for c in left
    }


@given(CHECKPOINTS.filter(bool), POLICIES, st.data())
def test_the_newest_and_the_pinned_stay_whole(
    found: list[Ckpt], policies: list[KeepPolicy], data: st.DataObject
) -> None:
    newest = max(found, key=lambda c: (c.step, c.created))
    pinned = data.draw(st.sampled_from(found))
    decisions = decide(found, policies, {pinned.id: "pinned"})
    assert decisions[newest.id].items is None
    assert decisions[pinned.id].items is None


@given(CHECKPOINTS, COUNTS, st.sampled_from([1.0, 3.5, 10.0]))
def test_buckets_keep_at_most_one_of_a_period_and_never_more_than_asked(
    found: list[Ckpt], n: int, seconds: float
) -> None:
    kept = Buckets(n, seconds).reasons(sorted(found, key=lambda c: -c.step))
    periods = [c.created // seconds for c in found if c.id in kept]
    assert len(periods) == len(set(periods)) <= n
    assert len(periods) == min(n, len({c.created // seconds for c in found}))


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_counts_are_checked(n: int) -> None:
    makers: list[Callable[[int], KeepPolicy]] = [Last, Every]
    makers += [lambda k: Best("loss", n=k), lambda k: Buckets(k, HOUR)]
    for make in makers:
        with pytest.raises(ValueError, match="n >= 1"):
            make(n)


def test_other_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="mode"):
        Best("loss", mode="least")  # type: ignore[arg-type]
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds"):
            Buckets(1, seconds)
    for items in ((), ("model", "")):
        with pytest.raises(ValueError, match="names of items"):
            Only(items, Last(1))


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("last=3", Last(3)),
        ("every=1000", Every(1000)),
        ("best=loss", Best("loss")),
        ("best=loss:2", Best("loss", n=2)),
        ("best=accuracy:max", Best("accuracy", "max")),
        ("best=accuracy:max:3", Best("accuracy", "max", 3)),
        ("best=accuracy:3:max", Best("accuracy", "max", 3)),
        ("hourly=24", Buckets(24, HOUR)),
        ("daily=7", Buckets(7, 24 * HOUR)),
        ("weekly=4", Buckets(4, 7 * 24 * HOUR)),
        ("model:every=1000", Only(("model",), Every(1000))),
        ("model+ema:daily=7", Only(("model", "ema"), Buckets(7, 24 * HOUR))),
        ("model:best=loss:min:2", Only(("model",), Best("loss", "min", 2))),
        (" last = 3 ", Last(3)),
    ],
)
def test_what_a_person_writes_is_read(text: str, policy: KeepPolicy) -> None:
    assert parse_keep(text) == policy


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is not a policy"),
        ("last", "'' is not a whole number"),
        ("last=0", "n >= 1"),
        ("last=-1", "'-1' is not a whole number"),
        ("last=1.5", "'1.5' is not a whole number"),
        ("last=³", "'³' is not a whole number"),
        ("newest=3", "'newest' is not a policy"),
        ("best=", "best requires a metric"),
        ("best=loss:least", "'least' is not a whole number"),
        ("best=loss:min:max", "at most one of min and max"),
        ("best=loss:1:2", "at most one of min and max"),
        ("+model:last=1", "names of items"),
        ("model+:last=1", "names of items"),
    ],
)
def test_what_is_no_policy_is_said_with_what_there_is(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_keep(text)
    assert str(caught.value).startswith(f"cannot keep {text!r}: ")
    assert problem in str(caught.value)
    assert "write last=N" in str(caught.value)
