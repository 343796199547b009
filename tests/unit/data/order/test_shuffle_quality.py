"""The report on a shuffle: 1 for a full one, and off where few shards are live."""

import numpy as np
import pytest

from data.order.sample_order import Order
from data.order.shuffle_quality import shuffle_report


def test_one_window_over_all_is_a_full_shuffle() -> None:
    report = shuffle_report(Order([100] * 60, seed=1, streams=1, window=60), batch=64)
    assert report.live_shards == 60
    for ratio in (report.neighbour_distance, report.shards_per_batch_ratio):
        assert ratio == pytest.approx(1, abs=0.05)
    assert report.same_shard_ratio == pytest.approx(1, abs=0.2)
    assert report.reunion_ratio == pytest.approx(1, abs=0.2)


def test_streams_and_windows_come_near_a_full_shuffle_and_one_shard_at_a_time_does_not() -> None:
    default = shuffle_report(Order([100] * 400, seed=1), batch=128)
    assert default.neighbour_distance == pytest.approx(1, abs=0.1)
    assert default.reunion_ratio == pytest.approx(1, abs=0.3)
    narrow = shuffle_report(Order([100] * 400, seed=1, streams=1, window=2), batch=128)
    assert narrow.live_shards == 2
    assert narrow.shards_per_batch < 5
    assert narrow.same_shard_ratio > 50
    assert narrow.reunion_ratio is not None
    assert narrow.reunion_ratio > 10
    natural = shuffle_report(Order([100] * 400, shuffle=False), batch=128)
    assert natural.neighbour_distance < 0.001
    assert natural.shards_per_batch < narrow.shards_per_batch


def test_great_datasets_are_measured_by_a_part() -> None:
    report = shuffle_report(Order(np.full(3000, 1000)))
    assert report.reunion_ratio is None
    assert report.live_shards == 48 * 8


def test_impossible_batches_are_refused() -> None:
    for batch in (1, 11):
        with pytest.raises(ValueError, match="batch"):
            shuffle_report(Order([10]), batch=batch)
