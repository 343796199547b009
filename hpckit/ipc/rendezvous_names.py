"""Names of a generation's rendezvous and of its participants."""

from __future__ import annotations

from collections.abc import Iterable


def rendezvous_id(run: str, generation: int) -> str:
    """Returns the id of a rendezvous that only the torchruns of this generation use."""
    return f"{run}-g{generation}"


def participant_name(rendezvous: str, place: int) -> str:
    """Returns the name of the torchrun of node `place` at the rendezvous store."""
    return f"{rendezvous}/{place}"


def participants(names: Iterable[str], run: str, generation: int) -> list[int]:
    """Returns the nodes of those torchruns among `names` that belong to this generation."""
    found = (name.rpartition("/") for name in names)
    mine = rendezvous_id(run, generation)
    return [int(place) for of, _, place in found if of == mine and place.isdigit()]
