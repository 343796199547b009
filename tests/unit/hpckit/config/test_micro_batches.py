"""Micro-batches are equal in size wherever the rules of the spec let a batch through."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpckit.config.batch_size import micro_batch_count
from hpckit.config.rules.violations import violations
from tests.effort import times
from tests.unit.hpckit.specs_and_processes import make_spec


@settings(max_examples=times(150), deadline=None)
@given(world=st.integers(1, 8), factor=st.integers(1, 48), micro=st.integers(1, 64))
def test_a_share_is_cut_into_equal_parts_none_larger_than_allowed(
    world: int, factor: int, micro: int
) -> None:
    base = make_spec()
    spec = replace(
        base,
        launch=replace(base.launch, nodes=world),
        train=replace(base.train, global_batch=world * factor, micro_batch=micro),
    )
    assume(not violations(spec))
    parts = torch.zeros(factor, 3).chunk(micro_batch_count(factor, micro))
    assert len(parts) == micro_batch_count(factor, micro)
    assert sum(len(part) for part in parts) == factor
    assert {len(part) for part in parts} == {min(micro, factor)}
