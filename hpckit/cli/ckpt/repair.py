"""`hpckit ckpt repair`, `flatten` and `compact`, which rewrite checkpoints from existing data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkpointing.format.object_keys import SaveId
from checkpointing.store.catalog import CheckpointInfo, committed
from checkpointing.store.repair.lost_manifests import LostCheckpoint, lost_checkpoints
from checkpointing.store.store import Store
from hpckit.cli.ckpt.checkpoint_selection import choose_any, choose_checkpoint, pick
from hpckit.cli.ckpt.store_location import StoreLocation, opened
from hpckit.cli.common.command_output import CommandOutput, count, listing, size
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import DAMAGED, CommandUsageError, guarded
from hpckit.cli.common.store_options import MaybeStepArg, PlaceArg, RunOption, StepArg

if TYPE_CHECKING:
    from checkpointing.store.deletion.pack_compaction import CompactionResult

MOST = 20  # repaired or lost parts of one checkpoint that are printed; --json has all


@guarded
def repair(
    place: PlaceArg,
    step: MaybeStepArg = None,
    run: RunOption = None,
    sources: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="PLACE", help="Another store with copies; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only verify, and print what would be repaired.")
    ] = False,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Only commit saves that all ranks had finished."),
    ] = False,
    json: JsonOption = False,
) -> int:
    """Repair damaged checkpoints with intact copies from this store or others.

    Example: hpckit ckpt repair runs/gpt-1a2b3c4d --from s3://bucket/copy

    Each repaired checkpoint becomes a new revision; the damaged one remains until prune removes
    it. A checkpoint whose manifest is lost is copied from --from if STEP names it, if this store
    has all its bytes, or has some that nothing else needs (so it was not pruned).

    With --adopt, it only commits saves that lacked nothing but the commit.
    """
    out = CommandOutput(json)
    if adopt and (step is not None or sources or dry_run):
        raise CommandUsageError(
            "--adopt works on a whole run: it cannot be combined with STEP, --from or --dry-run"
        )
    with ExitStack() as stack:
        at = stack.enter_context(opened(place, run, may_be_new=bool(sources)))
        if adopt:
            return _adopt(at, out)
        others = [stack.enter_context(opened(source)) for source in sources or ()]
        return _repair(at, step, others, dry_run, out)


def _adopt(at: StoreLocation, out: CommandOutput) -> int:
    from checkpointing.store.repair.checkpoint_repair import commit_orphaned_saves

    run = at.only_run()
    saves = commit_orphaned_saves(at.store, run)
    for save in saves:
        out.line(f"committed step {save.step} ({save.id}) of run {run}")
    if not saves:
        out.line(f"no unfinished save of run {run} has the parts of all its ranks")
    out.document({"run": run, "adopted": [save.id for save in saves]})
    return 0


def _repair(
    at: StoreLocation,
    step: str | None,
    others: Sequence[StoreLocation],
    dry_run: bool,
    out: CommandOutput,
) -> int:
    from checkpointing.store.repair.checkpoint_repair import repair as heal

    run, stores = _run(at, others), [other.store for other in others]
    reports: list[dict[str, Any]] = []
    for save, raw in _wanted(at, run, step, stores, out).items():
        with out.progress(f"step {save.step}", raw) as on_bytes:
            result = heal(at.store, run, save, stores, on_bytes, dry_run=dry_run)
        lost = [str(problem) for problem in result.lost]
        _print(out, f"step {save.step} ({save.id})", result.healed, lost, dry_run)
        reports.append(
            {
                "id": save.id,
                "healed": result.healed,
                "lost": [asdict(problem) for problem in result.lost],
                "key": result.key,
            }
        )
    out.document({"run": run, "dry_run": dry_run, "checkpoints": reports})
    is_lost = any(report["lost"] for report in reports)
    if is_lost and not others:
        out.line("next: --from names another store that may have the lost chunks")
    return DAMAGED if is_lost else 0


def _run(at: StoreLocation, others: Sequence[StoreLocation]) -> str:
    """Return the run to work on. This store may have lost all manifests of the run.

    Raises:
        CommandUsageError: no store has it, or several runs are possible.
    """
    elsewhere = sorted({run for other in others for run in other.runs})
    if at.run is None and not at.runs and len(elsewhere) == 1:
        return elsewhere[0]
    run = at.only_run()
    if run not in (*at.runs, *elsewhere):
        there = listing(sorted({*at.runs, *elsewhere})) or "none"
        stores = f"{at.store.url} or the stores of --from"
        raise CommandUsageError(f"no run {run!r} in {stores}; the runs are: {there}")
    return run


def _wanted(
    at: StoreLocation, run: str, step: str | None, others: Sequence[Store], out: CommandOutput
) -> dict[SaveId, int]:
    """Return the saves to check, including those with damaged or lost manifests, and the bytes of
    each, if known."""
    found, unreadable = committed(at.store, run)
    raw = {f.stored.save: sum(i.raw_bytes for i in f.document.items.values()) for f in found}
    raw |= dict.fromkeys(unreadable, 0)
    elsewhere = lost_checkpoints(at.store, run, others)
    if step is not None:
        info = _named(replace(at, run=run), step, raw, elsewhere, out)
        return {info.save: raw.get(info.save, info.raw_bytes)}
    raw |= {one.info.save: one.info.raw_bytes for one in elsewhere if one.is_left}
    if pruned := [one.info for one in elsewhere if not one.is_left]:
        out.note(
            f"in the store of --from but not in this one, probably pruned: {_steps(pruned)}; to "
            f"restore one, name it: `hpckit ckpt repair {at.text} {pruned[-1].id} --from ...`"
        )
    return dict(sorted(raw.items()))


def _steps(infos: Sequence[CheckpointInfo]) -> str:
    return listing([f"step {info.step} ({info.id})" for info in infos], 4)


def _named(
    at: StoreLocation,
    text: str,
    known: Collection[SaveId],
    elsewhere: Sequence[LostCheckpoint],
    out: CommandOutput,
) -> CheckpointInfo:
    """Return the checkpoint that the text names: one in this store, or else a lost one.

    Raises:
        CommandUsageError: there is none.
    """
    try:
        info = choose_any(at, text, out.note)
    except CommandUsageError as error:
        return _lost(text, elsewhere, error, out)
    if info.save in known:
        return info
    refusal = CommandUsageError(
        f"step {info.step} ({info.id}) is not a checkpoint: {info.problem}; --adopt commits it if "
        "all "
        "its ranks had finished"
    )
    return _lost(text, elsewhere, refusal, out)


def _lost(
    text: str, elsewhere: Sequence[LostCheckpoint], refusal: CommandUsageError, out: CommandOutput
) -> CheckpointInfo:
    """Return a checkpoint that only other stores have, by its step or id, because the newest one
    that ever existed may not be the one that is meant."""
    if not text[:1].isdecimal():
        raise refusal
    try:
        picked = pick([one.info for one in elsewhere], {}, text, "the stores of --from")
    except CommandUsageError:
        raise refusal from None
    if picked.remark:
        out.note(picked.remark)
    return picked.info


def _print(
    out: CommandOutput, what: str, healed: list[str], lost: list[str], dry_run: bool
) -> None:
    if not healed and not lost:
        out.line(f"{what}: nothing to repair")
        return
    done = "would be repaired" if dry_run else "repaired"
    out.line(f"{what}: {len(healed):,} {done}, {len(lost):,} lost")
    for word, things in ((done, healed), ("lost", lost)):
        for thing in things[:MOST]:
            out.line(f"  {word}: {thing}")
        if len(things) > MOST:
            out.line(f"  and {len(things) - MOST:,} more {word}: --json lists them")


@guarded
def flatten(
    place: PlaceArg, step: StepArg, run: RunOption = None, json: JsonOption = False
) -> None:
    """Rewrite a checkpoint so that none of its chunks is stored as a difference to another one.

    Example: hpckit ckpt flatten runs/gpt-1a2b3c4d latest
    """
    out = CommandOutput(json)
    from checkpointing.store.repair.base_removal import flatten as rewrite

    with opened(place, run) as at:
        chosen = choose_checkpoint(at, step, out.note)
        raw = sum(item.raw_bytes for item in chosen.found.document.items.values())
        with out.progress(f"step {chosen.save.step}", raw) as on_bytes:
            key = rewrite(at.store, chosen.run, chosen.found, on_bytes)
        is_new = key != chosen.found.stored.key
        what = f"step {chosen.save.step} ({chosen.save.id}) of run {chosen.run}"
        out.line(f"{what} now has no bases" if is_new else f"{what} already had no bases")
        out.document({"run": chosen.run, "id": chosen.save.id, "key": key, "rewritten": is_new})


@guarded
def compact(
    place: PlaceArg,
    run: RunOption = None,
    threshold: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=0.99,
            metavar="SHARE",
            help="Rewrite packs of which a larger share is unused.",
        ),
    ] = 0.3,
    json: JsonOption = False,
) -> None:
    """Copy used data out of packs that are mostly unused, so that prune can delete them.

    Example: hpckit ckpt compact s3://bucket/ckpts
    """
    out = CommandOutput(json)
    from checkpointing.store.deletion.pack_compaction import compact as rewrite

    with opened(place, run) as at:
        with out.progress("compacting", None) as on_bytes:
            result = rewrite(at.store, at.run, threshold, on_bytes)
        _print_compacted(out, result)
        out.document(asdict(result))


def _print_compacted(out: CommandOutput, result: CompactionResult) -> None:
    if not result.packs:
        out.line("no pack has so large a share of dead bytes: nothing was rewritten")
        return
    out.line(
        f"rewrote {count(len(result.packs), 'pack')} of {size(result.freed_bytes)} as "
        f"{size(result.written_bytes)}; {count(len(result.revisions), 'checkpoint')} revised; "
        "the next prune deletes the old ones"
    )
    for id_, why in result.spared.items():
        out.line(f"{id_} still needs old packs: {why}")
