"""`hpckit ckpt prune`, which removes the checkpoints that no policy keeps."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.text import Text

from checkpointing.retention import KeepPolicy, parse_keep
from checkpointing.store.deletion import deletion_marks
from checkpointing.store.deletion.checkpoint_prune import PruneChoice, PruneResult, prune
from checkpointing.store.deletion.pack_sweep import GRACE_S, SweepResult, sweep
from checkpointing.store.deletion.prune_preview import (
    PrunePlan,
    is_changed,
    plan_prune,
    sound_choices,
)
from checkpointing.store.inspection.integrity_check import IntegrityProblem
from checkpointing.store.sessions import session_leases
from checkpointing.store.store import Store
from hpckit.cli.ckpt.store_location import opened
from hpckit.cli.common.command_output import CommandOutput, clean, count, listing, size, table
from hpckit.cli.common.run_argument import JsonOption, YesOption
from hpckit.cli.common.store_errors import DAMAGED, CommandUsageError, guarded
from hpckit.cli.common.store_options import PlaceArg, RunOption
from hpckit.report.checkpoints.prune_summary import describe_plan, fate_of, unknown_names

SLACK_S = 0.5  # additional wait after the grace period, as clocks are coarse


@guarded
def prune_run(
    place: PlaceArg,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="POLICY",
            help="last=3, every=1000, best=loss, hourly=24, model:every=5000; may be repeated.",
        ),
    ] = None,
    run: RunOption = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only print what would be removed, why, and how much that frees."
        ),
    ] = False,
    grace: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="S",
            help="Seconds before packs that are marked for deletion are deleted.",
        ),
    ] = GRACE_S,
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Wait for the end of the grace period, then delete."),
    ] = True,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """Remove checkpoints that no policy and no pin keeps. It is safe during saves and restores.

    Example: hpckit ckpt prune runs/gpt-1a2b3c4d --keep last=3 --keep every=1000 --dry-run
    """
    out = CommandOutput(json)
    policies = _policies(keep or [])
    with opened(place, run) as at:
        name = at.only_run()
        choices, damaged = _sound_choices(at.store, name, policies, out)
        if problem := unknown_names(policies, choices):
            raise CommandUsageError(
                f"{problem} in run {name} of {at.store.url}: nothing was removed"
            )
        if not (dry_run or yes or out.is_asking()):
            raise CommandUsageError(
                "give --yes, because there is no terminal to ask on (--dry-run shows what would be "
                "removed); nothing was removed"
            )
        if dry_run or not yes:
            plan = _make_plan(at.store, choices, out)
            _print_plan(plan, out)
            if dry_run:
                body = {"store": at.store.url, "run": name, **_plan_record(plan)}
                out.document({**body, "damaged": damaged})
                return DAMAGED if plan.problems or damaged else 0
            if not typer.confirm("Remove this?", err=True):
                raise CommandUsageError("nothing was removed, because you did not confirm")
        result = prune(at.store, name, policies, grace_s=grace, ignore=frozenset(damaged))
        swept = result.swept or SweepResult()
        _print_removed(out, result)
        if wait:
            swept = _wait(at.store, swept, grace, out)
        _print_swept(out, swept)
        body = {"store": at.store.url, "run": name, **_plain(result, swept)}
        out.document({**body, "damaged": damaged})
    return DAMAGED if swept.unreadable or damaged else 0


def _sound_choices(
    store: Store, run: str, policies: Sequence[KeepPolicy], out: CommandOutput
) -> tuple[list[PruneChoice], dict[str, str]]:
    """Return what `sound_choices` returns, and say which checkpoints are damaged."""

    def on_damaged(choice: PruneChoice, problem: IntegrityProblem) -> None:
        out.note(f"damaged, and therefore neither counted nor removed: {choice.id}, {problem}")

    return sound_choices(store, run, policies, on_damaged)


def _policies(texts: Sequence[str]) -> list[KeepPolicy]:
    if not texts:
        raise CommandUsageError(
            "give what to keep: --keep last=3, or other policies (--help lists them); nothing was "
            "removed"
        )
    try:
        return [parse_keep(text) for text in texts]
    except ValueError as error:
        raise CommandUsageError(f"{error}; nothing was removed") from None


def _wait(store: Store, swept: SweepResult, grace_s: float, out: CommandOutput) -> SweepResult:
    """Sweep once more when the objects that wait for their grace period are old enough."""
    left_s = left(store, swept, grace_s)
    if left_s <= 0:
        return swept
    out.note(f"packs are deleted in {left_s:.0f} s; --no-wait leaves them to the next prune")
    ticks = math.ceil(left_s + SLACK_S)
    with out.counting("waiting", ticks) as on_tick:
        for _ in range(ticks):
            time.sleep((left_s + SLACK_S) / ticks)
            on_tick(1)
    again = sweep(store, grace_s=grace_s)
    return replace(
        again,
        condemned=swept.condemned + again.condemned,
        deleted=swept.deleted + again.deleted,
        deleted_bytes=swept.deleted_bytes + again.deleted_bytes,
        ended=[*swept.ended, *again.ended],
    )


def left(store: Store, swept: SweepResult, grace_s: float) -> float:
    """Return the seconds until the grace period of the youngest waiting object ends; 0 if it
    has ended for all."""
    if not swept.waiting or grace_s == 0:
        return 0.0
    now = session_leases.storage_time(store)
    ages = [
        now - entry.modified
        for entry, _ in deletion_marks.list_deletion_marks(store)
        if entry.key in swept.waiting
    ]
    return max((grace_s - age for age in ages), default=0.0)


def _print_removed(out: CommandOutput, result: PruneResult) -> None:
    if result.removed:
        out.line(f"removed {count(len(result.removed), 'checkpoint')}: {listing(result.removed)}")
    if result.reduced:
        out.line(f"took items out of {listing(result.reduced)}")
    if not result.removed and not result.reduced:
        out.line("no checkpoint was removed")
    for id_, why in result.spared.items():
        out.line(f"kept {id_}: {why}")


def _print_swept(out: CommandOutput, swept: SweepResult) -> None:
    if swept.deleted:
        out.line(f"deleted {count(swept.deleted, 'pack')}, {size(swept.deleted_bytes)}")
    for session in swept.ended:
        out.line(f"session {session} did not renew its lease for too long and was ended")
    for why in sorted(set(swept.waiting.values())):
        out.line(
            f"packs that nothing needs are not deleted yet: {why}; the next prune deletes them"
        )
    for key in swept.unreadable:
        out.line(
            f"damaged: {key} cannot be read, so it is unknown which packs it needs, and none is "
            "deleted: repair it, or remove it if it is not needed"
        )


def _plain(result: PruneResult, swept: SweepResult) -> dict[str, Any]:
    return {
        "removed": result.removed,
        "reduced": result.reduced,
        "spared": result.spared,
        "swept": asdict(swept),
    }


def _make_plan(store: Store, choices: Sequence[PruneChoice], out: CommandOutput) -> PrunePlan:
    """Compute the plan, and show how far that is."""
    with out.counting("reading tables", len(store.manifests())) as on_checkpoint:
        return plan_prune(store, choices, on_checkpoint)


def _print_plan(plan: PrunePlan, out: CommandOutput) -> None:
    """Print a line for each checkpoint, and what the whole prune frees."""
    rows = table(
        "step", "id", "fate", "frees", "why", right=("step", "frees"), folded=("fate", "why")
    )
    for choice in plan.choices:
        frees = plan.alone.get(choice.found.stored.save, 0)
        rows.add_row(
            str(choice.step),
            choice.id,
            _fate(choice),
            size(frees) if is_changed(choice) else "",
            clean("; ".join(choice.decision.reasons)),
        )
    out.table(rows)
    for save, problem in plan.problems.items():
        out.line(f"damaged: run {save.run}, step {save.step} ({save.id}): {problem}")
    if plan.problems:
        out.line("what it needs is unknown: less than stated is freed, perhaps nothing")
    out.line(describe_plan(plan))


def _plan_record(plan: PrunePlan) -> dict[str, Any]:
    """Return the plan as JSON values."""
    return {
        "checkpoints": [
            {
                "step": choice.step,
                "id": choice.id,
                "goes": choice.decision.goes,
                "drops": list(choice.drops),
                "reasons": list(choice.decision.reasons),
                "frees": plan.alone.get(choice.found.stored.save, 0),
            }
            for choice in plan.choices
        ],
        "freed": asdict(plan.freed),
        "problems": {f"{s.run}/{s.id}": text for s, text in plan.problems.items()},
    }


def _fate(choice: PruneChoice) -> Text:
    colour = "red" if choice.decision.goes else "yellow" if choice.drops else "green"
    return Text(clean(fate_of(choice)), colour)
