"""Exports a checkpoint as a torch.save file. torch is imported when one is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.element_types import element
from checkpointing.format.item_table import TensorSpec
from checkpointing.format.manifest import item_of
from checkpointing.format.tiles import Box
from checkpointing.format.values.json_values import decode
from checkpointing.interop import list_branches
from checkpointing.interop.atomic_files import new_files
from checkpointing.interop.box_runs import write_box
from checkpointing.interop.export_stream import stream
from checkpointing.interop.tensor_names import chosen, path_of, values_of
from checkpointing.interop.torch_save import optimizer_state_dict
from checkpointing.interop.torch_save.state_tree import outline_in, rebuild_tree
from checkpointing.interop.torch_save.zip_records import ZipRecord, records, rewrite_checksums
from checkpointing.storage import Buffer
from checkpointing.store.checkpoint import Checkpoint

logger = logging.getLogger("checkpointing")

Make = Callable[[Mapping[str, Any]], dict[str, Any]]  # builds the tree of leaves given by full name


def export_torch(
    checkpoint: Checkpoint,
    file: Path,
    *,
    items: Sequence[str] | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Write a file that `torch.load(file, weights_only=True)` loads: a dict with an entry for each
    item, nested as the state was ("model/layers.0.weight" is ["model"]["layers.0.weight"]).

    What `import_torch` saved is restored as it was. An optimizer that `Checkpointer` saved becomes
    its `state_dict()`, for `load_state_dict`, with parameters by number; if the checkpoint does not
    give their order, the names are kept and a warning is logged. A few chunks are in memory at a
    time.

    Args:
        items: the items to export; None: all.
        on_bytes: called with the number of raw bytes written.

    Raises:
        FileExistsError: the file already exists.
        KeyError: there is no such item.
        FormatError: a name is both a tensor or value and the prefix of others, or
            torch.load(weights_only=True) would refuse a value.
        DamagedError: the checkpoint cannot be read as it was written.
        OSError: writing failed; nothing is left behind.
    """
    from checkpointing.interop.torch_save.file_skeleton import write_skeleton

    wanted = chosen(checkpoint, items)
    values = {name: decode(value) for name, value in values_of(checkpoint, wanted).items()}
    make, tensors = _way(checkpoint, wanted, values), checkpoint.tensors(wanted)
    # torch numbers the records in the order in which it finds the tensors
    order = [leaf.name for leaf in _leaves(make({**values, **{n: _Leaf(n) for n in tensors}}))]
    # the options of an optimizer occur only once in it
    tensors = {name: tensors[name] for name in order}
    with new_files([Path(file)]) as (output,):
        write_skeleton(output.temporary, tensors, lambda empty: make({**values, **empty}))
        places = dict(zip(order, records(output.temporary), strict=True))
        _check(tensors, places)

        def use(name: str, box: Box, raw: Buffer) -> None:
            spec = tensors[name]
            itemsize = element(spec.dtype).itemsize
            write_box(output, places[name].start, spec.shape, itemsize, box, raw)

        stream(checkpoint, tensors, use, on_bytes)
        rewrite_checksums(output.temporary, list(places.values()))


@dataclass(frozen=True)
class _Leaf:
    """A placeholder for a tensor."""

    name: str


def _way(checkpoint: Checkpoint, items: Sequence[str], values: Mapping[str, Any]) -> Make:
    """Returns the function that builds the tree from the leaves."""
    outline = outline_in(checkpoint.values())
    if outline is not None:
        return lambda leaves: rebuild_tree(outline, leaves, items)
    places = list_branches.lists_of(checkpoint)
    optimizers = _optimizers([*checkpoint.tensors(items), *values])

    def make(leaves: Mapping[str, Any]) -> dict[str, Any]:
        others = {name: leaf for name, leaf in leaves.items() if item_of(name) not in optimizers}
        tree = nest(others, places)
        for item in optimizers:
            below = {n.partition("/")[2]: leaf for n, leaf in leaves.items() if item_of(n) == item}
            tree[path_of(item)[0]] = _optimizer(item, below, places)
        return tree

    return make


def _optimizers(names: Sequence[str]) -> list[str]:
    """Returns the items that are optimizers."""
    below: dict[str, dict[str, None]] = {}
    for name in names:
        item, is_below, rest = name.partition("/")
        below.setdefault(item, {})[rest if is_below else ""] = None
    return [item for item, its in below.items() if optimizer_state_dict.is_optimizer(its)]


def _optimizer(item: str, leaves: Mapping[str, Any], places: Collection[str]) -> dict[str, Any]:
    try:
        found = optimizer_state_dict.state_dict(leaves)
    except (LookupError, TypeError, ValueError) as error:
        raise DamagedError(f"{item!r} is not a saved optimizer: {error!r}") from error
    if found is not None:
        return found
    logger.warning(
        "optimizer %r is exported by the names of its parameters: the checkpoint does not say in "
        "which order the optimizer had them, so load_state_dict() cannot take it; "
        "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict() can",
        item,
    )
    tree: dict[str, Any] = nest({f"{item}/{n}": leaf for n, leaf in leaves.items()}, places)
    return next(iter(tree.values()))


def nest(leaves: Mapping[str, Any], places: Collection[str] = ()) -> dict[str, Any]:
    """Returns tensors and values, given by full name, as nested dicts.

    Args:
        places: full names of the branches that are lists.

    Raises:
        FormatError: a name is both a leaf and the prefix of another.
    """
    root: dict[str, Any] = {}
    nodes: dict[str, dict[str, Any]] = {}
    for name, leaf in leaves.items():
        above, segments = root, name.split("/")
        for depth, segment in enumerate(segments[:-1], 1):
            branch = "/".join(segments[:depth])
            if branch not in nodes:
                nodes[branch] = {}
                _put(above, path_of(segment)[0], nodes[branch], name)
            above = nodes[branch]
        _put(above, path_of(segments[-1])[0], leaf, name)
    # the innermost ones first
    for branch in sorted(nodes.keys() & {*places}, key=len, reverse=True):
        over, is_below, last = branch.rpartition("/")
        held = nodes[branch]
        if held.keys() == {str(place) for place in range(len(held))}:
            row = [held[str(place)] for place in range(len(held))]
            (nodes[over] if is_below else root)[path_of(last)[0]] = row
    return root


def _leaves(tree: Any) -> Iterator[_Leaf]:
    if isinstance(tree, _Leaf):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(child)


def _put(node: dict[str, Any], key: str, thing: Any, name: str) -> None:
    if key in node:
        raise FormatError(f"{name!r} cannot be exported: a part of its name is already used")
    node[key] = thing


def _check(tensors: Mapping[str, TensorSpec], places: Mapping[str, ZipRecord]) -> None:
    for name, spec in tensors.items():
        if places[name].size != spec.bytes:
            raise FormatError(
                f"{name!r} has {spec.bytes} bytes, but this version of torch makes a record of "
                f"{places[name].size} bytes: export to safetensors or DCP instead"
            )
