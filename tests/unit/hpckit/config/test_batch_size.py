"""The batch of worlds of other sizes, and the learning rate that follows it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpckit.config.batch_size import global_batch
from hpckit.config.learning_rate import lr_scale
from hpckit.config.rules.violations import fits
from tests.unit.hpckit.specs_and_processes import make_spec

FULL: dict[str, Any] = {
    "launch.nodes": 4,
    "launch.nproc_per_node": 2,
    "train.global_batch": 64,
    "train.micro_batch": 4,
}


@pytest.mark.parametrize("world", [2, 4, 6, 8, 16])
def test_the_batch_stays_or_a_ranks_share_of_it(world: int) -> None:
    stays = make_spec(FULL)
    assert (global_batch(stays, world), lr_scale(stays, world)) == (64, 1.0)
    linear = make_spec(FULL | {"elastic.scale_lr": "linear"})
    assert (global_batch(linear, world), lr_scale(linear, world)) == (8 * world, world / 8)
    root = make_spec(FULL | {"elastic.scale_lr": "sqrt"})
    assert global_batch(root, world) == 8 * world
    assert lr_scale(root, world) == pytest.approx(math.sqrt(world / 8))


def test_where_a_share_stays_any_number_of_nodes_will_do() -> None:
    assert not fits(make_spec(FULL), 3)
    assert fits(make_spec(FULL | {"elastic.scale_lr": "linear"}), 3)


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
def test_the_rate_follows_the_batch_from_that_which_it_is_right_for(
    rule: str, factor: float
) -> None:
    given = FULL | {"optim.base_batch": 16, "optim.scale": rule}
    assert [lr_scale(make_spec(given), world) for world in (4, 8)] == [factor, factor]
    both = make_spec(given | {"elastic.scale_lr": "linear"})
    assert lr_scale(both, 4) == pytest.approx(factor / 2), "and from there to fewer ranks"
