"""How often the leader of a save lists the part records of many ranks."""

from __future__ import annotations

import pytest

from checkpointing.service.coordinator.save_leader import least_wait_s
from hpckit.planner.store_costs import pages


@pytest.mark.parametrize("parts", [0, 8, 999, 1000, 16_384, 100_000])
def test_listings_take_few_requests_per_second(parts: int) -> None:
    wait_s = least_wait_s(parts)
    assert pages(parts) <= 1 + 10 * wait_s  # one for what fits into one request
    assert least_wait_s(8) < 0.02  # small jobs do not wait for it
