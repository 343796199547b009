"""`hpckit ckpt du`, which shows the storage that checkpoints need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from checkpointing.store.inspection.space_usage import (
    CheckpointUsage,
    MeasuredStore,
    PackUsage,
    StoredCost,
    measure,
    pack_usage,
    per_checkpoint,
)
from hpckit.cli.ckpt.store_location import StoreLocation, opened
from hpckit.cli.common.command_output import (
    Cell,
    CommandOutput,
    clean,
    count,
    fitted_table,
    listing,
    size,
    table,
)
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import DAMAGED, guarded, repair_advice
from hpckit.cli.common.store_options import PlaceArg, RunOption


@guarded
def du(place: PlaceArg, run: RunOption = None, json: JsonOption = False) -> int:
    """Show the storage that each checkpoint needs, how much of it is shared, and how much is
    unused.

    Example: hpckit ckpt du s3://bucket/ckpts
    """
    out = CommandOutput(json)
    with opened(place, run) as at:
        total = len(at.store.manifests())
        with out.counting("reading tables", total) as on_checkpoint:
            measured = measure(at.store, on_checkpoint)
        usages = [u for u in per_checkpoint(measured.refs) if at.run in (None, u.save.run)]
        packs = pack_usage(measured.refs, measured.sizes)
        _print_checkpoints(out, at, usages, measured)
        _print_items(out, usages)
        _print_packs(out, at, packs)
        _print_problems(out, at, packs, measured)
        out.document(_plain(at, usages, packs, measured))
    return DAMAGED if measured.problems or packs.missing else 0


def _print_checkpoints(
    out: CommandOutput,
    at: StoreLocation,
    usages: Sequence[CheckpointUsage],
    measured: MeasuredStore,
) -> None:
    with_run = ["run"] if at.run is None and len(at.runs) > 1 else []
    numbers = ("stored", "needs", "alone", "shared")
    rows: list[dict[str, Cell]] = [
        {
            "run": clean(usage.save.run),
            "step": str(usage.save.step),
            "id": usage.save.id,
            "stored": size(measured.stored[usage.save]),
            "needs": size(usage.cost.total),
            "alone": size(usage.cost.alone),
            "shared": size(usage.cost.shared),
        }
        for usage in usages
    ]
    importance = [*with_run, "step", "id", "stored", "alone", "needs", "shared"]
    columns, right = ("run", "step", "id", *numbers), ("step", *numbers)
    folded = {"run": 12} if with_run else {}
    out.table(
        fitted_table(rows, importance, out.width, columns=columns, right=right, folded=folded)
    )
    out.line(
        "stored: as in ls, without the bases of differences; needs: with these, each byte once; "
        "alone: what removing just this one would free; shared: what others also need"
    )


def _print_items(out: CommandOutput, usages: Sequence[CheckpointUsage]) -> None:
    rows = table("item", "needs", "alone", right=("needs", "alone"))
    for name, cost in by_item(usages).items():
        rows.add_row(clean(name), size(cost.total), size(cost.alone))
    out.line()
    out.table(rows)
    out.line("summed over the checkpoints above: shared bytes are counted for each")


def by_item(usages: Iterable[CheckpointUsage]) -> dict[str, StoredCost]:
    """Return the sums of each item's costs."""
    found: dict[str, StoredCost] = {}
    for usage in usages:
        for name, cost in usage.items.items():
            so_far = found.get(name, StoredCost(0, 0))
            found[name] = StoredCost(so_far.total + cost.total, so_far.alone + cost.alone)
    return dict(sorted(found.items()))


def _print_packs(out: CommandOutput, at: StoreLocation, packs: PackUsage) -> None:
    in_use = packs.live_bytes + packs.dead_bytes
    share = packs.dead_bytes / in_use if in_use else 0.0
    out.line()
    out.line(f"store     {size(packs.bytes)} in {count(packs.packs, 'pack')}, {at.store.url}")
    out.line(f"needed    {size(packs.live_bytes)}")
    out.line(
        f"dead      {size(packs.dead_bytes)} inside packs that are needed ({share:.1%} of them)"
    )
    out.line(
        f"garbage   {size(packs.garbage_bytes)} in {count(packs.garbage_packs, 'pack')} that no "
        "checkpoint needs: of a running save, or to be deleted by prune"
    )


def _print_problems(
    out: CommandOutput, at: StoreLocation, packs: PackUsage, measured: MeasuredStore
) -> None:
    for save, problem in measured.problems.items():
        out.line(f"damaged: run {save.run}, step {save.step} ({save.id}): {problem}")
    if measured.problems:
        out.line("what damaged checkpoints need is unknown, so dead and garbage are too high")
    if packs.missing:
        out.line(
            f"damaged: {count(len(packs.missing), 'pack')} that checkpoints need do not exist: "
            f"{listing(packs.missing, 3)}; `hpckit ckpt verify {at.text}` shows which tensors are "
            "affected"
        )
    if measured.problems or packs.missing:
        out.line(repair_advice(at.text))


def _plain(
    at: StoreLocation, usages: Sequence[CheckpointUsage], packs: PackUsage, measured: MeasuredStore
) -> dict[str, Any]:
    return {
        "store": at.store.url,
        "checkpoints": [
            {
                "run": usage.save.run,
                "step": usage.save.step,
                "id": usage.save.id,
                "stored": measured.stored[usage.save],
                **_cost(usage.cost),
                "items": {name: _cost(cost) for name, cost in usage.items.items()},
            }
            for usage in usages
        ],
        "packs": asdict(packs),
        "problems": {f"{s.run}/{s.id}": text for s, text in measured.problems.items()},
    }


def _cost(cost: StoredCost) -> dict[str, int]:
    return {"total": cost.total, "alone": cost.alone, "shared": cost.shared}
