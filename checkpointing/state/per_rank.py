"""State that differs by rank (`PerRank`), and a check that no other state does.

A checkpoint keeps one copy of what all ranks hold under the same name. A random number generator or
a loader that differs by rank would be restored on all ranks as it was on one. It is refused when
the ranks first exchange the structure of a state, unless it is declared as `PerRank`.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch.distributed as dist
from blake3 import blake3
from torch import Tensor

from checkpointing.errors import SaveError
from checkpointing.format.torch_dtypes import as_bytes
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.staging.tensor_copy import cells_of
from checkpointing.state.tree import Leaves, children, is_branch, rebuilt

Differing: TypeAlias = Literal["error", "warn"]
OtherWorld: TypeAlias = "Literal['error', 'first'] | Callable[[Sequence[Any], int, int], Any]"

logger = logging.getLogger("checkpointing")

_SHOWN = 5


@dataclass
class PerRank:
    """A part of the state that differs by rank: saved for each rank, and restored on each.

        state = {"model": model, "optimizer": optimizer, "sampler": PerRank(sampler)}

    Args:
        held: an object with `state_dict()` and `load_state_dict()`, or nested plain values and
            tensors, which are replaced here by a restore.
        other_world: what a restore on another number of ranks does. "error": it raises; "first":
            every rank gets the state of rank 0; a function: it is called with the states of all
            saved ranks, this rank and the number of ranks, and returns the state of this rank.
    """

    held: Any
    other_world: OtherWorld = "error"

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown `other_world`."""
        if not callable(self.other_world) and self.other_world not in ("error", "first"):
            raise ValueError(
                "PerRank(other_world=) must be 'error', 'first' or a function, not "
                f"{self.other_world!r}"
            )


def rank_and_world() -> tuple[int, int]:
    """Returns this rank and the number of ranks; 0 and 1 without torch.distributed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def blank(tree: Any) -> Any:
    """Returns a tree of the same form, with new tensors to load into."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if is_branch(tree):
        return rebuilt(tree, [(key, blank(child)) for key, child in children(tree, "")])
    return copy.deepcopy(tree)


def check_differing(how: str) -> None:
    """Raises ValueError if `how` is not one of `Differing`."""
    if how not in ("error", "warn"):
        raise ValueError(f"differing must be 'error' or 'warn', not {how!r}")


def compare_ranks(ranks: RankGroup, leaves: Leaves, how: Differing) -> None:
    """Compare what ranks hold under the same names. Collective.

    Raises:
        SaveError: it differs; raised on all ranks.
    """
    if ranks.world_size == 1:
        return
    mine = fingerprints(leaves)
    names_hash, whole_hash = summary = _summary(mine)
    summaries = ranks.all_gather(summary, ranks.control)
    first = {names: rank for rank, (names, _) in reversed([*enumerate(summaries)])}
    # compare the contents on ranks with the same names; the details are for the error message
    if len(set(summaries)) > len(first):
        gathered = ranks.all_gather_alike(mine, lambda: names_hash + whole_hash, ranks.control)
    # some names are on all ranks and some on a few: one rank of each kind reports
    elif len(first) > 1:
        told, digest = (mine, names_hash) if ranks.rank in first.values() else ({}, b"")
        gathered = ranks.all_gather_alike(told, lambda: digest, ranks.control)
    else:
        return
    if (text := difference_among(gathered)) is None:
        return
    words = (
        f"ranks have different values under one name, but a checkpoint keeps one:{text}"
        "\n  save values that differ as PerRank(...), or save the value of one rank; "
        "Checkpointer(differing='warn') keeps one for all"
    )
    if how == "error":
        raise SaveError(words)
    if ranks.rank == 0:
        logger.warning(words)


def fingerprints(leaves: Leaves) -> dict[str, bytes]:
    """Returns 8 bytes for each value, and for each small tensor that belongs to no module or
    optimizer; they are equal on two ranks if the contents are."""
    compared = ((name, one) for name, one in leaves.values.items() if name not in leaves.unlike)
    found = {name: _hash(json.dumps(value).encode()) for name, value in compared}
    for name in leaves.plain:
        tensor = cells_of(leaves.tensors[name]).resolve_conj().resolve_neg().cpu().contiguous()
        found[name] = _hash(bytes(as_bytes(tensor)))
    return found


def difference_among(by_rank: Sequence[Mapping[str, bytes]]) -> str | None:
    """Describes what ranks hold under one name with different contents; None if nothing
    differs."""
    first: dict[str, tuple[int, bytes]] = {}
    others: dict[str, list[int]] = {}
    for rank, held in enumerate(by_rank):
        for name, content in held.items():
            if first.setdefault(name, (rank, content))[1] != content:
                others.setdefault(name, []).append(rank)
    if not others:
        return None
    lines = [
        f"\n    {name}: rank{'s' if len(ranks) > 1 else ''} {_shown_ranks(ranks)} "
        f"{'have' if len(ranks) > 1 else 'has'} another value than rank {first[name][0]}"
        for name, ranks in sorted(others.items())[:_SHOWN]
    ]
    if len(others) > _SHOWN:
        lines.append(f"\n    … and {len(others) - _SHOWN} more")
    return "".join(lines)


def _summary(held: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    """Returns a hash of the names, and one of names and contents, short enough to exchange among
    many ranks."""
    names = sorted(held)
    return _hash("\0".join(names).encode()), _hash(
        b"".join(name.encode() + b"\0" + held[name] for name in names)
    )


def _hash(content: bytes) -> bytes:
    return blake3(content).digest(8)


def _shown_ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    return f"{shown}, …" if len(ranks) > _SHOWN else shown
