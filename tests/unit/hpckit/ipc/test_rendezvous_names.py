"""Names at a rendezvous."""

from __future__ import annotations

from hpckit.ipc.rendezvous_names import participant_name, participants, rendezvous_id


def test_places_are_those_of_the_generation_alone() -> None:
    names = [
        participant_name(rendezvous_id("gpt", generation), 3 * generation)
        for generation in (1, 2, 12)
    ]
    assert participants([*names, "gpt-g2/", "gpt-g2/x", "gpt-g2", ""], "gpt", 2) == [6]
    assert participants(names, "gpt", 3) == []
    assert participants(names, "other", 2) == []
