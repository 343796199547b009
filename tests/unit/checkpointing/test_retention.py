from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing import Best, Every, Last, keep_reasons


@dataclass(frozen=True)
class Ckpt:
    step: int
    id: str
    created: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)


def at(*steps: int) -> list[Ckpt]:
    return [Ckpt(step, str(step)) for step in steps]


def test_last_and_every_join() -> None:
    reasons = keep_reasons(at(0, 5, 10, 12, 20, 25, 27), [Last(2), Every(10)])
    assert reasons == {
        "27": ["newest", "last 2"],
        "25": ["last 2"],
        "20": ["every 10 steps"],
        "10": ["every 10 steps"],
        "0": ["every 10 steps"],
    }


def test_every_takes_the_first_at_or_after_a_multiple() -> None:
    assert set(keep_reasons(at(3, 9, 12, 15, 31), [Every(10)])) == {"12", "31"}


def test_best_by_metric() -> None:
    values = {1: 0.5, 2: 0.1, 3: float("nan"), 4: 0.1, 6: 0.9}
    found = [Ckpt(s, str(s), metrics={"loss": v}) for s, v in values.items()] + at(5, 7)
    assert set(keep_reasons(found, [Best("loss")])) == {"7", "4"}
    assert set(keep_reasons(found, [Best("loss", n=2)])) == {"7", "4", "2"}
    assert set(keep_reasons(found, [Best("loss", mode="max")])) == {"7", "6"}
    assert set(keep_reasons(found, [Best("other")])) == {"7"}


def test_same_step_twice_the_later_one_is_newer() -> None:
    found = [Ckpt(5, "new", created=2.0), Ckpt(5, "old", created=1.0)]
    assert keep_reasons(found, [Last(1)]) == {"new": ["newest", "last 1"]}


POLICIES = st.one_of(
    st.builds(Last, st.integers(1, 5)),
    st.builds(Every, st.integers(1, 30)),
    st.builds(Best, st.just("loss"), st.sampled_from(["min", "max"]), st.integers(1, 3)),
)
CHECKPOINTS = st.lists(st.tuples(st.integers(0, 100), st.floats() | st.none()), max_size=20).map(
    lambda rows: [
        Ckpt(step, f"{step}-{i}", float(i), {} if loss is None else {"loss": loss})
        for i, (step, loss) in enumerate(rows)
    ]
)


@given(CHECKPOINTS, st.lists(POLICIES, max_size=3))
def test_retention_is_a_union_and_stable(found: list[Ckpt], policies: list[Last]) -> None:
    kept = keep_reasons(found, policies)
    assert all(kept.values())
    if not policies:
        assert kept.keys() == {c.id for c in found}
        return
    assert keep_reasons(found[::-1], policies) == kept
    alone = [keep_reasons(found, [policy]).keys() for policy in policies]
    assert kept.keys() == set().union(*alone)
    # pruning again changes nothing
    survivors = [c for c in found if c.id in kept]
    assert keep_reasons(survivors, policies).keys() == kept.keys()
    if found:
        newest = max(found, key=lambda c: (c.step, c.created))
        assert "newest" in kept[newest.id]


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_counts_are_checked(n: int) -> None:
    for make in (Last, Every, lambda k: Best("loss", n=k)):
        with pytest.raises(ValueError, match="n >= 1"):
            make(n)
    with pytest.raises(ValueError, match="mode"):
        Best("loss", mode="least")  # type: ignore[arg-type]
