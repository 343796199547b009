"""The rule that picks tier and codec for a deadline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.codec import EncodeOutlook
from checkpointing.service.coordinator.rank_part_writer import rates_of
from checkpointing.service.spool.save_tier_choice import (
    CALL_S,
    LOCAL_RATE,
    MARGIN,
    STORE_RATE,
    SaveRates,
    SaveTier,
    SnapshotCopyTask,
    TierCodec,
    choices,
    choose_tier,
    is_last_call,
)

GIB = float(1 << 30)
BYTES = st.floats(0, 1e13)
RATE = st.none() | st.floats(1.0, 1e11)
RATES = st.builds(SaveRates, encode=RATE, share=st.floats(0.0, 1.5), store=RATE, local=RATE)
TASKS = st.builds(
    SnapshotCopyTask, to_store=BYTES, to_local=st.none() | BYTES, compresses=st.booleans()
)
LEFT_S = st.floats(-1e3, 1e6)


@given(TASKS, RATES, LEFT_S)
def test_no_way_that_is_late_is_picked_where_one_is_in_time(
    task: SnapshotCopyTask, rates: SaveRates, left_s: float
) -> None:
    picked, ways = choose_tier(task, rates, left_s), choices(task, rates)
    assert picked in ways
    in_time = [way for way in ways if way.meets(left_s)]
    assert picked.meets(left_s) == bool(in_time)
    if not in_time:
        assert picked.needs_s == min(way.needs_s for way in ways)


@given(TASKS, RATES, LEFT_S)
def test_of_those_in_time_the_more_durable_is_picked_then_the_smaller(
    task: SnapshotCopyTask, rates: SaveRates, left_s: float
) -> None:
    picked = choose_tier(task, rates, left_s)
    in_time = [way for way in choices(task, rates) if way.meets(left_s)]
    if not in_time:
        return
    if any(way.tier is SaveTier.STORE for way in in_time):
        assert picked.tier is SaveTier.STORE
    same = [way for way in in_time if way.tier is picked.tier]
    assert picked.bytes == min(way.bytes for way in same)


@given(TASKS, RATES)
def test_what_cannot_be_is_no_way(task: SnapshotCopyTask, rates: SaveRates) -> None:
    ways = choices(task, rates)
    assert any(way.tier is SaveTier.LOCAL for way in ways) == (task.to_local is not None)
    compressed = any(way.codec is TierCodec.COMPRESSED for way in ways)
    assert compressed == (task.compresses and rates.encode is not None)
    assert [way for way in ways if (way.tier, way.codec) == (SaveTier.STORE, TierCodec.RAW)]


@pytest.mark.parametrize(
    ("only_if_slower", "codec"), [(False, TierCodec.COMPRESSED), (True, TierCodec.RAW)]
)
def test_a_store_that_is_faster_than_encoding_is_written_raw(
    only_if_slower: bool, codec: TierCodec
) -> None:
    ahead = EncodeOutlook(GIB, 1e8, 1e9, 0.5, None, store_rate=1e9, only_if_slower=only_if_slower)
    assert choose_tier(SnapshotCopyTask(GIB, None), rates_of(ahead), 1e6).codec is codec


@given(TASKS, RATES, st.floats(0, 1e6), st.floats(0, 1e6))
def test_more_time_never_makes_it_less_durable(
    task: SnapshotCopyTask, rates: SaveRates, first_s: float, more_s: float
) -> None:
    before, after = choose_tier(task, rates, first_s), choose_tier(task, rates, first_s + more_s)
    if before.meets(first_s) and before.tier is SaveTier.STORE:
        assert after.tier is SaveTier.STORE


def test_the_ways_in_turn_as_time_gets_short() -> None:
    task = SnapshotCopyTask(to_store=100 * GIB, to_local=100 * GIB)
    rates = SaveRates(encode=2 * GIB, share=0.5, store=1 * GIB, local=4 * GIB)
    picked = [choose_tier(task, rates, left_s / MARGIN) for left_s in (101, 26)]
    assert [(way.tier, way.codec) for way in picked] == [
        (SaveTier.STORE, TierCodec.COMPRESSED),
        (SaveTier.LOCAL, TierCodec.RAW),
    ]
    slow_encoder = SaveRates(encode=1 * GIB, share=0.5, store=1 * GIB, local=4 * GIB)
    way = choose_tier(task, slow_encoder, 101 / MARGIN)
    assert (way.tier, way.codec) == (SaveTier.STORE, TierCodec.RAW)
    assert choose_tier(task, slow_encoder, 151 / MARGIN).codec is TierCodec.COMPRESSED


def test_what_does_not_get_smaller_is_not_encoded() -> None:
    way = choose_tier(
        SnapshotCopyTask(GIB, None), SaveRates(encode=100 * GIB, share=1.1, store=GIB), 3600.0
    )
    assert way.codec is TierCodec.RAW


def test_before_anything_was_measured_a_slow_store_and_a_slow_disk_are_counted_on() -> None:
    task = SnapshotCopyTask(to_store=60 * STORE_RATE, to_local=60 * STORE_RATE)
    assert choose_tier(task, SaveRates(), 61 / MARGIN).tier is SaveTier.STORE
    assert choose_tier(task, SaveRates(), 59 / MARGIN).tier is SaveTier.LOCAL
    assert choose_tier(task, SaveRates(), 59 / MARGIN).needs_s == 60 * STORE_RATE / LOCAL_RATE


def test_the_last_call_comes_shortly_before_a_copy_is_late_and_when_it_is() -> None:
    task, rates = (
        SnapshotCopyTask(GIB, 10 * GIB),
        SaveRates(store=GIB, local=GIB),
    )  # the copy takes 10 s
    called = [
        left_s
        for left_s in (-1.0, 0.0, 5.0, 10 / MARGIN, 10 / MARGIN + CALL_S / 2, 20.0)
        if is_last_call(task, rates, left_s)
    ]
    assert called == [-1.0, 0.0, 10 / MARGIN, 10 / MARGIN + CALL_S / 2]
    assert not is_last_call(SnapshotCopyTask(GIB, None), rates, 0.0)
