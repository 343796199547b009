"""Names at a rendezvous."""

from __future__ import annotations

from hpckit.run.rendezvous import name_of, places, rendezvous_id


def test_places_are_those_of_the_generation_alone() -> None:
    names = [name_of(rendezvous_id("gpt", generation), 3 * generation) for generation in (1, 2, 12)]
    assert places([*names, "gpt-g2/", "gpt-g2/x", "gpt-g2", ""], "gpt", 2) == [6]
    assert places(names, "gpt", 3) == []
    assert places(names, "other", 2) == []
