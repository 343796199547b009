"""A torch.save file of a checkpoint. torch is imported when one is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from checkpointing.errors import FormatError
from checkpointing.format.elements import element
from checkpointing.format.table import Spec
from checkpointing.format.tiles import Box
from checkpointing.interop.boxes import write_box
from checkpointing.interop.exporting import stream
from checkpointing.interop.files import new_files
from checkpointing.interop.naming import chosen, path_of, values_of
from checkpointing.interop.zip_records import Record, records, seal
from checkpointing.storage import Buffer
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.values import decode


def export_torch(
    checkpoint: Checkpoint,
    file: Path,
    *,
    items: Sequence[str] | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Write a file that `torch.load(file, weights_only=True)` loads: dicts by name, nested as the
    state was ("model/layers.0.weight" is ["model"]["layers.0.weight"]), of tensors and values.

    Lists and tuples that held tensors become dicts with the keys "0", "1", ...; a few chunks are
    in memory at a time.

    Args:
        items: to export; None: all.
        on_bytes: told how many raw bytes were written.

    Raises:
        FileExistsError: the file is there already.
        KeyError: there is no such item.
        FormatError: a name is both a tensor or value and the beginning of others.
        DamagedError: the checkpoint cannot be read as it was written.
        OSError: not written; nothing is left behind.
    """
    from checkpointing.interop.torch_skeleton import write_skeleton

    wanted = chosen(checkpoint, items)
    tensors, values = checkpoint.tensors(wanted), values_of(checkpoint, wanted)
    with new_files([Path(file)]) as (output,):
        plain = {name: decode(value) for name, value in values.items()}
        write_skeleton(output.temporary, tensors, lambda empty: nest({**empty, **plain}))
        # torch numbers the records in the order in which it comes upon the tensors
        order = [n for n in _leaves(nest({n: n for n in [*tensors, *values]})) if n in tensors]
        places = dict(zip(order, records(output.temporary), strict=True))
        _check(tensors, places)

        def use(name: str, box: Box, raw: Buffer) -> None:
            spec = tensors[name]
            itemsize = element(spec.dtype).itemsize
            write_box(output, places[name].start, spec.shape, itemsize, box, raw)

        stream(checkpoint, tensors, use, on_bytes)
        seal(output.temporary, list(places.values()))


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Things by full name as nested dicts.

    Raises:
        FormatError: a name is both a thing's and the beginning of another's.
    """
    root: dict[str, Any] = {}
    nodes: dict[tuple[str, ...], dict[str, Any]] = {(): root}
    for name, leaf in leaves.items():
        path = path_of(name)
        for depth in range(1, len(path)):
            if path[:depth] not in nodes:
                nodes[path[:depth]] = {}
                _put(nodes[path[: depth - 1]], path[depth - 1], nodes[path[:depth]], name)
        _put(nodes[path[:-1]], path[-1], leaf, name)
    return root


def _leaves(tree: Mapping[str, Any]) -> Iterator[str]:
    for thing in tree.values():
        if isinstance(thing, dict):
            yield from _leaves(thing)
        else:
            yield thing


def _put(node: dict[str, Any], key: str, thing: Any, name: str) -> None:
    if key in node:
        raise FormatError(f"{name!r} cannot be exported: a part of its name is taken already")
    node[key] = thing


def _check(tensors: Mapping[str, Spec], places: Mapping[str, Record]) -> None:
    for name, spec in tensors.items():
        if places[name].size != spec.bytes:
            raise FormatError(
                f"{name!r} has {spec.bytes} bytes, but this version of torch makes a record of "
                f"{places[name].size}: export to safetensors or DCP instead"
            )
