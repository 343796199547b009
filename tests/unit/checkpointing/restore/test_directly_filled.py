"""Which tensors of a state a restore from the store fills without a staging buffer."""

from __future__ import annotations

import torch

from checkpointing.format.tiles import Box, whole
from checkpointing.layout.global_plan import ReadGroup
from checkpointing.layout.tensor_layout import ShardPart
from checkpointing.restore.store_restore import directly_filled

_TILE = (4, 7)
_base = torch.zeros(30, 7)
_TENSORS = {
    "alone": torch.zeros(10, 7),
    "tied": _base[:10],
    "tied too": _base[5:15],
    "of its own in the same storage": _base[15:25],
    "transposed": torch.zeros(7, 10).T,
    "expanded": torch.zeros(1, 7).expand(10, 7),
    "on several ranks": torch.zeros(10, 7),
    "before the others": torch.zeros(10, 7),
    "on a device": torch.zeros(10, 7, device="meta"),
}
_PARTS = {"whole tiles": Box((4, 0), (4, 7)), "parts of tiles": Box((3, 0), (5, 7))}


def _filled(*, keeps: bool) -> set[str]:
    parts = {name: (ShardPart(whole((10, 7)), whole((10, 7))),) for name in _TENSORS}
    parts |= {name: (ShardPart(box, whole(box.sizes)),) for name, box in _PARTS.items()}
    shared = {"on several ranks": parts.pop("on several ranks")}
    groups = [ReadGroup((1,), (parts,)), ReadGroup((0, 1), ({}, shared))]
    tensors = _TENSORS | {name: torch.zeros(10, 7) for name in _PARTS}
    tiles = dict.fromkeys(tensors if keeps else (), _TILE)
    return {*directly_filled(tensors, groups, tiles, {"before the others"})}


def test_what_no_other_tensor_or_rank_has_is_filled_directly() -> None:
    kept = {"alone", "of its own in the same storage", "whole tiles"}
    assert _filled(keeps=True) == kept
    assert _filled(keeps=False) == kept | {"parts of tiles"}
