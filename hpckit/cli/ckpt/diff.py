"""`hpckit ckpt diff`, which shows the changes from one checkpoint to another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.inspection.checkpoint_diff import (
    CheckpointComparison,
    TensorDiff,
    ValueDiff,
    compare,
    matches,
    measured,
)
from hpckit.cli.ckpt.checkpoint_selection import SelectedCheckpoint, choose_checkpoint, unmatched
from hpckit.cli.ckpt.read_lease import read_lease
from hpckit.cli.ckpt.store_location import opened
from hpckit.cli.common.command_output import (
    Cell,
    CommandOutput,
    clean,
    count,
    fitted_table,
    size,
    table,
)
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import DAMAGED, guarded
from hpckit.cli.common.store_options import PlaceArg, RunOption, StepArg, TensorOption
from hpckit.report.checkpoints.tensor_changes import (
    change_cells,
    count_kinds,
    describe_kind,
    interest,
    short,
)

_IMPORTANCE = ("tensor", "", "size", "rel. L2", "max |B-A|", "elements", "chunks")
"""Columns of the tensors, the least important one last."""
_FOLDED = {"tensor": 24, "": 8}
"""Columns that may take several lines, and the width that they have at least."""


@guarded
def diff(
    place: PlaceArg,
    a: StepArg,
    b: StepArg,
    run: RunOption = None,
    other: Annotated[
        str | None,
        typer.Option("--with", metavar="PLACE", help="Store of B, if it is not that of A."),
    ] = None,
    other_run: Annotated[
        str | None,
        typer.Option("--with-run", metavar="NAME", help="Run of B, if it is not that of A."),
    ] = None,
    tensor: TensorOption = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show the N most changed tensors and values.")
    ] = 20,
    all_: Annotated[
        bool, typer.Option("--all", help="Show all, including unchanged ones.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Compare checkpoints A and B, tensor by tensor: what changed, and by how much.

    Example: hpckit ckpt diff runs/gpt-1a2b3c4d 1000 latest
    """
    out = CommandOutput(json)
    with ExitStack() as stack:
        place_a = stack.enter_context(opened(place, run))
        has_other = other is not None or other_run is not None
        of_b = (other or place, other_run if has_other else run)
        place_b = stack.enter_context(opened(*of_b)) if has_other else place_a
        chosen = [choose_checkpoint(place_a, a, out.note), choose_checkpoint(place_b, b, out.note)]
        for one in chosen:
            stack.enter_context(read_lease(one.store, one.found, out.note))
        old, new = (Checkpoint(one.store, one.found.stored) for one in chosen)
        comparison = compare(old, new, tensor)
        _require_match(tensor, (old, new))
        with out.progress("comparing", comparison.bytes) as on_bytes:
            tensors = measured(comparison, old, new, on_bytes)
    _print_sides(out, chosen)
    _print_tensors(out, tensors, None if all_ else limit)
    _print_values(out, comparison.values, None if all_ else limit)
    out.document(_plain(chosen, tensors, comparison))
    return DAMAGED if any(t.kind == "damaged" for t in tensors) else 0


def _require_match(globs: Sequence[str] | None, sides: Sequence[Checkpoint]) -> None:
    if not globs:
        return
    names = dict.fromkeys(name for one in sides for name in (*one.tensors(), *one.values()))
    if not any(matches(name, globs) for name in names):
        raise unmatched(globs, "nothing in A or B", names)


def _print_sides(out: CommandOutput, chosen: Sequence[SelectedCheckpoint]) -> None:
    for side, one in zip("AB", chosen, strict=True):
        where = f"run {one.run} in {one.store.url}"
        out.line(f"{side}  step {one.save.step} ({one.save.id}), {where}")


def _print_tensors(out: CommandOutput, tensors: Sequence[TensorDiff], most: int | None) -> None:
    out.line()
    out.line(count_kinds(tensors))
    shown = [t for t in tensors if t.kind != "same" or most is None]
    shown.sort(key=interest)
    if not shown:
        return
    numbers = ("chunks", "elements", "max |B-A|", "rel. L2")
    cells: list[dict[str, Cell]] = []
    for diff in shown[:most]:
        spec = diff.b or diff.a
        changes = change_cells(diff.change) if diff.change else ("", "", "", "")
        raw = size(spec.bytes) if spec else ""
        row: dict[str, Cell] = {"tensor": clean(diff.name), "": _word(diff), "size": raw}
        cells.append(row | dict(zip(numbers, changes, strict=True)))
    columns, right = ("tensor", "", "size", *numbers), ("size", *numbers)
    out.table(
        fitted_table(cells, _IMPORTANCE, out.width, columns=columns, right=right, folded=_FOLDED)
    )
    if most is not None and len(shown) > most:
        out.line(f"and {count(len(shown) - most, 'more tensor')}: --all shows all")
    for diff in shown:
        if diff.problem:
            out.line(f"damaged: {diff.problem}")
        if diff.change and diff.change.not_finite:
            elements = count(diff.change.not_finite, "changed element")
            out.line(
                f"{diff.name}: {elements} NaN or infinite in A or B, left out of these numbers"
            )


def _word(diff: TensorDiff) -> Text:
    colour = {"same": "dim", "changed": "", "damaged": "red"}.get(diff.kind, "yellow")
    return Text(clean(describe_kind(diff)), colour)


def _print_values(out: CommandOutput, values: Sequence[ValueDiff], most: int | None) -> None:
    shown = [value for value in values if value.kind != "same" or most is None]
    same = sum(value.kind == "same" for value in values)
    if not values:
        return
    out.line()
    out.line(f"{count(len(values), 'value')}: {same:,} unchanged, {len(values) - same:,} changed")
    if not shown:
        return
    rows = table("value", "A", "B", folded=("value", "A", "B"))
    for value in shown[:most]:
        in_a = "" if value.kind == "only_b" else short(value.a)
        in_b = "" if value.kind == "only_a" else short(value.b)
        rows.add_row(clean(value.name), in_a, in_b)
    out.table(rows)
    if most is not None and len(shown) > most:
        out.line(f"and {count(len(shown) - most, 'more value')}: --all shows all")


def _plain(
    chosen: Sequence[SelectedCheckpoint],
    tensors: Sequence[TensorDiff],
    comparison: CheckpointComparison,
) -> dict[str, Any]:
    sides = {
        side: {"store": one.store.url, "run": one.run, "step": one.save.step, "id": one.save.id}
        for side, one in zip("ab", chosen, strict=True)
    }
    return {
        **sides,
        "tensors": [asdict(tensor) for tensor in tensors],
        "values": [asdict(value) for value in comparison.values],
    }
