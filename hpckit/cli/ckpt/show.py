"""`hpckit ckpt show`, which shows the content of a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.chunks import Chunk
from checkpointing.format.item_table import ItemTable, TensorSpec
from checkpointing.format.replica_differences import (
    MarkedDifferences,
    describe_difference,
    dump_marked,
)
from checkpointing.format.values.json_values import Json, readable
from checkpointing.store.catalog import CatalogEntry
from checkpointing.store.inspection.checkpoint_diff import matches
from checkpointing.store.pins_and_labels import label_of, readable_marks
from hpckit.cli.ckpt.checkpoint_selection import choose_checkpoint, unmatched
from hpckit.cli.ckpt.store_location import opened
from hpckit.cli.common.command_output import (
    Cell,
    CommandOutput,
    clean,
    count,
    fitted_table,
    number,
    ratio,
    size,
    table,
    when,
)
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import DAMAGED, guarded
from hpckit.cli.common.store_options import PlaceArg, RunOption, StepArg, TensorOption
from hpckit.report.checkpoints.tensor_changes import short

_NUMBERS = ("raw", "stored", "ratio", "chunks", "depth", "tensors")
_MOST_DIFFERENCES = 10
_COLUMNS = ("tensor", "shape", "dtype", "raw", "stored", "ratio", "codecs", "chunks", "depth")
_IMPORTANCE = ("tensor", "raw", "stored", "shape", "ratio", "dtype", "codecs", "chunks", "depth")
"""Columns of the tensors, the least important one last."""
_FOLDED = {"tensor": 24, "shape": 10, "codecs": 8}
"""Columns that may take several lines, and the width that they have at least."""


@dataclass(frozen=True)
class TensorRow:
    """A tensor as it is stored."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    raw_bytes: int
    stored_bytes: int  # of its own chunks, each once, without bases
    codecs: dict[str, int]  # name -> chunks
    chunks: int
    depth: int  # the largest number of bases that one of its chunks needs


@guarded
def show(
    place: PlaceArg,
    step: StepArg = "latest",
    run: RunOption = None,
    tensor: TensorOption = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show the N largest tensors, N values.")
    ] = 20,
    all_: Annotated[bool, typer.Option("--all", help="Show all tensors and values.")] = False,
    json: JsonOption = False,
) -> int:
    """Show a checkpoint: its header, items, tensors and values.

    Example: hpckit ckpt show runs/gpt-1a2b3c4d best --tensor 'model/*.weight'
    """
    out = CommandOutput(json)
    with opened(place, run) as at:
        chosen = choose_checkpoint(at, step, out.note)
        # problems were noted by `choose_checkpoint`
        named, _ = readable_marks(at.store, chosen.run)
        marks = {name: m for name, m in named.items() if m.id == chosen.save.id}
        labels = [
            label_of(n, m) + (f": {m.why}" if m.why else "")
            for n, m in marks.items()
            if not m.metrics  # which are shown
        ]
        metrics = {name: v for m in marks.values() for name, v in m.metrics.items()}
        metrics = {**chosen.found.document.header.metrics, **metrics}
        tables, problems = _tables(chosen.found)
    rows = sorted(
        (row(name, spec, t) for t in tables.values() for name, spec in t.tensors.items()),
        key=lambda r: (-r.raw_bytes, r.name),
    )
    wanted = [r for r in rows if matches(r.name, tensor)]
    every = {n: v for t in tables.values() for n, v in t.values.items()}
    values = {n: readable(v) for n, v in every.items() if matches(n, tensor)}
    if tensor and not wanted and not values and rows:
        raise unmatched(tensor, "no tensor", (r.name for r in rows))
    most = max(len(wanted), len(values)) if all_ else limit
    _print_header(out, chosen.found, at.store.url, labels, metrics)
    _print_tensors(out, wanted, most)
    _print_values(out, values, most)
    for problem in problems:
        out.line(f"damaged: {problem}")
    body = _plain(chosen.found, labels, wanted[:most], len(wanted), values, problems)
    out.document({**body, "metrics": metrics})
    return DAMAGED if problems else 0


def row(name: str, spec: TensorSpec, found: ItemTable) -> TensorRow:
    """Return the cells of a tensor."""
    placed = list(found.chunks[name].values())
    own: dict[bytes, Chunk] = {chunk.id: chunk for chunk in placed}
    return TensorRow(
        name=name,
        shape=spec.shape,
        dtype=spec.dtype,
        raw_bytes=spec.bytes,
        stored_bytes=sum(chunk.length for chunk in own.values()),
        codecs=dict(Counter(chunk.codec.name.lower() for chunk in placed).most_common()),
        chunks=len(placed),
        depth=max((chunk.depth for chunk in placed), default=0),
    )


def _tables(found: CatalogEntry) -> tuple[dict[str, ItemTable], list[str]]:
    tables: dict[str, ItemTable] = {}
    problems = []
    for item in found.document.items:
        try:
            tables[item] = found.document.table(item)
        except (DamagedError, FormatError) as error:
            problems.append(str(error))
    return tables, problems


def _print_header(
    out: CommandOutput,
    found: CatalogEntry,
    url: str,
    labels: Sequence[str],
    metrics: Mapping[str, float],
) -> None:
    header, items = found.document.header, found.document.items
    raw = sum(item.raw_bytes for item in items.values())
    stored = sum(item.stored_bytes for item in items.values())
    revision = f", revision {header.revision}" if header.revision else ""
    values = ", ".join(f"{name} {number(v)}" for name, v in sorted(metrics.items()))
    lines = {
        "checkpoint": f"step {header.save.step}, {header.save.id}{revision}",
        "run": f"{header.save.run} in {url}",
        "saved": f"{when(header.created, exact=True)} by {count(header.world_size, 'rank')}",
        "imported": f"from {header.source}" if header.source else "",
        "size": f"{size(stored)} stored, {size(raw)} raw, {ratio(raw, stored)}, in "
        f"{count(len(found.document.packs()), 'pack')}",
        "metrics": values,
        "certified": clean(f"by equal gradients ({header.certified})") if header.certified else "",
        "marks": ", ".join(labels),
        "taken out": ", ".join(header.dropped),
    }
    for name, text in lines.items():
        if text:
            out.line(f"{name:<11} {text}")
    _print_differences(out, header.marked)
    rows = table("item", "tensors", "chunks", "raw", "stored", "ratio", right=_NUMBERS)
    for name, item in items.items():
        sizes = (size(item.raw_bytes), size(item.stored_bytes))
        times = ratio(item.raw_bytes, item.stored_bytes) if item.raw_bytes else ""
        rows.add_row(clean(name), f"{item.tensors:,}", f"{item.chunks:,}", *sizes, times)
    out.line()
    out.table(rows)


def _print_differences(out: CommandOutput, marked: MarkedDifferences | None) -> None:
    if marked is None:
        return
    out.line(f"differing   the ranks' replicas of {count(marked.count, 'tensor')} or values")
    for one in marked.differences[:_MOST_DIFFERENCES]:
        out.line(f"            {clean(describe_difference(one))}")
    if marked.count > _MOST_DIFFERENCES:
        out.line(f"            and {marked.count - _MOST_DIFFERENCES:,} more")


def _print_tensors(out: CommandOutput, wanted: Sequence[TensorRow], most: int) -> None:
    if not wanted:
        return
    cells = [_tensor_cells(r) for r in wanted[:most]]
    out.line()
    out.table(
        fitted_table(
            cells, _IMPORTANCE, out.width, columns=_COLUMNS, right=_NUMBERS, folded=_FOLDED
        )
    )
    if len(wanted) > most:
        out.line(f"and {count(len(wanted) - most, 'smaller tensor')}: --all shows them too")


def _tensor_cells(r: TensorRow) -> dict[str, Cell]:
    return {
        "tensor": clean(r.name),
        "shape": "x".join(map(str, r.shape)) or "scalar",
        "dtype": r.dtype,
        "raw": size(r.raw_bytes),
        "stored": size(r.stored_bytes),
        "ratio": ratio(r.raw_bytes, r.stored_bytes),
        "codecs": _codecs(r.codecs),
        "chunks": f"{r.chunks:,}",
        "depth": str(r.depth or ""),
    }


def _codecs(codecs: dict[str, int]) -> str:
    """Format codecs: "delta", or "delta 60, planes 4" if there are several."""
    if len(codecs) == 1:
        return next(iter(codecs))
    return ", ".join(f"{name} {n:,}" for name, n in codecs.items())


def _print_values(out: CommandOutput, values: dict[str, Json], most: int) -> None:
    if not values:
        return
    rows = table("value", "", folded=("value", ""))
    for name in sorted(values)[:most]:
        rows.add_row(clean(name), short(values[name]))
    out.line()
    out.table(rows)
    if len(values) > most:
        out.line(f"and {count(len(values) - most, 'more value')}: --all shows them too")


def _plain(
    found: CatalogEntry,
    labels: Sequence[str],
    rows: Sequence[TensorRow],
    tensors: int,
    values: dict[str, Json],
    problems: Sequence[str],
) -> dict[str, Any]:
    header = found.document.header
    return {
        "id": header.save.id,
        "run": header.save.run,
        "step": header.save.step,
        "created": header.created,
        "world_size": header.world_size,
        "revision": header.revision,
        "dropped": list(header.dropped),
        "source": header.source,
        "certified": header.certified,
        "differing": dump_marked(header.marked) if header.marked else None,
        "marks": list(labels),
        "items": {name: vars(item) for name, item in found.document.items.items()},
        "tensors_matching": tensors,
        "tensors": [asdict(r) for r in rows],
        "values": values,
        "problems": list(problems),
    }
