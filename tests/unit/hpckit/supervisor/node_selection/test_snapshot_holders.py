"""Whether parts of a save may lie on nodes that a generation does not have."""

from __future__ import annotations

from hpckit.supervisor.node_selection.snapshot_holders import SnapshotHolders


def test_what_another_job_has_left_may_be_anywhere() -> None:
    holders = SnapshotHolders()
    assert not holders.are_among([0, 1])
    holders.record_loss([0])
    assert not holders.are_among([0, 1]), "it did not train here"


def test_nodes_that_are_all_there_again_hold_all() -> None:
    holders = SnapshotHolders()
    holders.record_training([0, 1])
    assert holders.are_among([0, 1])
    assert holders.are_among([2, 1, 0])
    assert not holders.are_among([0, 2]), "1 is alive, and may be writing"


def test_with_a_node_its_parts_are_lost_and_a_spare_had_none() -> None:
    holders = SnapshotHolders()
    holders.record_training([0, 1])
    holders.record_loss([2])
    assert not holders.are_among([0, 2])
    holders.record_loss([1])
    assert holders.are_among([0, 2])
    holders.record_training([0, 2])
    assert not holders.are_among([0, 3])
