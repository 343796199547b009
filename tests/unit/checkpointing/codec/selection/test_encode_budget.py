from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.codec import EncodeBudget, EncodeOutlook, may_encode

MIB = 1 << 20
rates = st.floats(1e6, 1e11)


@given(
    sizes=st.lists(st.integers(1, 8 * MIB), min_size=1, max_size=40),
    encode_rate=rates,
    write_rate=rates,
    share=st.floats(0, 1.01),
    seconds=st.floats(-1, 100),
)
def test_never_later_than_raw_or_the_deadline(
    sizes: list[int], encode_rate: float, write_rate: float, share: float, seconds: float
) -> None:
    all_raw = sum(sizes) / write_rate
    ahead = EncodeOutlook(sum(sizes), encode_rate, write_rate, share, seconds)
    spent = 0.0
    for size in sizes:
        ahead = replace(ahead, seconds_left=seconds - spent)
        if may_encode(size, ahead):
            spent += size / encode_rate + size * share / write_rate
        else:
            spent += size / write_rate
        ahead = replace(ahead, raw_left=ahead.raw_left - size)
    assert spent <= max(all_raw, seconds) * (1 + 1e-9)


AHEAD = EncodeOutlook(
    raw_left=100 * MIB, encode_rate=1e9, write_rate=1e8, share=0.8, seconds_left=1.0
)


@pytest.mark.parametrize(
    ("change", "encoded"),
    [
        ({}, True),  # 1 s/GB of encoding saves 2 s/GB of writing
        ({"seconds_left": 0.0}, True),  # even when it is too late
        ({"share": 0.95}, False),  # saves less than it takes, and all raw takes the whole second
        ({"share": 0.95, "seconds_left": 3.0}, True),  # but there is time
        ({"share": 0.95, "seconds_left": None}, True),
        ({"write_rate": 3e9}, True),  # raw would be there in 35 ms
        ({"write_rate": 3e9, "seconds_left": 0.03}, False),
        ({"encode_rate": None}, False),
        ({"write_rate": None}, False),
        ({"write_rate": None, "seconds_left": None}, True),
    ],
)
def test_may_encode(change: dict[str, float | None], encoded: bool) -> None:
    assert may_encode(MIB, replace(AHEAD, **change)) is encoded  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [None, 1.0])
@pytest.mark.parametrize(
    ("store_rate", "encode_rate", "encoded"),
    [
        (9e8, 1e9, True),  # the store is slower
        (2e9, 1e9, False),
        (None, 1e9, True),
        (2e9, None, True),
    ],
)
def test_only_while_the_store_is_slower(
    store_rate: float | None, encode_rate: float | None, encoded: bool, seconds: float | None
) -> None:
    ahead = replace(AHEAD, encode_rate=encode_rate, store_rate=store_rate, seconds_left=seconds)
    always = may_encode(MIB, ahead)
    assert may_encode(MIB, replace(ahead, only_if_slower=True)) is (encoded and always)


class TestBudget:
    def test_learns_rates(self) -> None:
        budget = EncodeBudget(100 * MIB, workers=2)
        budget.encoded(MIB, MIB // 2, 0.01)
        budget.written(2 * MIB, MIB, 0.1)
        ahead = budget.outlook()
        assert ahead.encode_rate == pytest.approx(2 * MIB / 0.01)
        assert ahead.write_rate == pytest.approx(MIB / 0.1)
        assert ahead.raw_left == 98 * MIB
        for _ in range(100):
            budget.encoded(MIB, MIB // 4, 0.02)
            budget.written(0, MIB, 0.2)
        ahead = budget.outlook()
        assert ahead.encode_rate == pytest.approx(2 * MIB / 0.02, rel=0.01)
        assert ahead.write_rate == pytest.approx(MIB / 0.2, rel=0.01)
        assert ahead.share == pytest.approx(0.25, rel=0.01)

    def test_a_store_that_was_not_waited_for_is_at_least_so_fast(self) -> None:
        budget = EncodeBudget(100 * MIB)
        budget.sent(MIB, 0.0001, is_bound=True)  # too little to tell
        assert budget.outlook().store_rate is None
        budget.sent(10 * MIB, 0.1, is_bound=False)
        budget.sent(10 * MIB, 10.0, is_bound=False)
        assert budget.outlook().store_rate == pytest.approx(100 * MIB)
        budget.sent(10 * MIB, 0.05, is_bound=False)
        assert budget.outlook().store_rate == pytest.approx(200 * MIB)
        for _ in range(100):
            budget.sent(10 * MIB, 1.0, is_bound=True)
        assert budget.outlook().store_rate == pytest.approx(10 * MIB, rel=0.01)

    def test_the_rate_of_a_codec_that_a_fast_store_does_without_stays_known(self) -> None:
        budget = EncodeBudget(100 * MIB, only_if_slower=True)
        assert budget.allows(MIB)
        budget.encoded(MIB, MIB // 2, 0.01)
        budget.sent(10 * MIB, 0.01, is_bound=True)
        allowed = [budget.allows(MIB) for _ in range(64)]
        assert sum(allowed) == 1
        assert not any(
            budget.again(MIB, deadline=-1.0, only_if_slower=True).allows(MIB) for _ in range(99)
        )
        assert budget.again(MIB).allows(MIB)

    def test_small_chunks_count_little(self) -> None:
        budget = EncodeBudget(100 * MIB)
        budget.encoded(MIB, MIB // 2, 0.01)
        for _ in range(100):
            budget.encoded(1000, 900, 0.001)
        rate = budget.outlook().encode_rate
        assert rate is not None
        assert rate > 50 * MIB

    def test_nothing_measured_changes_nothing(self) -> None:
        budget = EncodeBudget(10)
        budget.encoded(0, 0, 0.0)
        budget.written(5, 0, 0.0)
        budget.written(50, 0, 0.0)
        assert budget.outlook() == EncodeOutlook(0, None, None, 1.0, None)

    def test_a_deadline_that_comes_up(self) -> None:
        now = [0.0]
        budget = EncodeBudget(100 * MIB, clock=lambda: now[0])
        assert budget.allows(MIB)
        budget.hurry(10.0)
        assert not budget.allows(MIB)  # no rates yet
        budget.encoded(MIB, MIB, 0.1)
        budget.written(MIB, MIB, 0.01)
        assert budget.allows(MIB)
        now[0] = 9.0
        assert not budget.allows(MIB)

    def test_the_next_save_knows_the_rates(self) -> None:
        first = EncodeBudget(MIB)
        first.encoded(MIB, MIB // 2, 0.01)
        first.written(MIB, MIB // 2, 0.1)
        ahead = first.again(5 * MIB, deadline=7.0).outlook()
        assert ahead.encode_rate == first.outlook().encode_rate
        assert (ahead.raw_left, ahead.write_rate) == (5 * MIB, first.outlook().write_rate)
        assert ahead.seconds_left is not None
