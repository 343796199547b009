"""What a generation's rendezvous and those who come to it are called."""

from __future__ import annotations

from collections.abc import Iterable


def rendezvous_id(run: str, generation: int) -> str:
    """What torchruns of no other generation have."""
    return f"{run}-g{generation}"


def participant_name(rendezvous: str, place: int) -> str:
    """What a torchrun calls itself to the rendezvous store."""
    return f"{rendezvous}/{place}"


def participants(names: Iterable[str], run: str, generation: int) -> list[int]:
    """Those of this generation's torchruns among these."""
    found = (name.rpartition("/") for name in names)
    mine = rendezvous_id(run, generation)
    return [int(place) for of, _, place in found if of == mine and place.isdigit()]
